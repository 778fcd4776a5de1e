-- Count a request of an API key before it is checked at length, or one that makes no job. ARGV: the key, its limits as in
-- submit.lua (JSON). Returns {verdict, requests left, tokens left, seconds until it fits}; the verdict is ok or requests.
local limits = cjson.decode(ARGV[2])
local verdict, requests_left, tokens_left, wait = admit(ARGV[1], '', {limits[1], limits[2], 0}, 1, 0, nil, now())
return {verdict, tostring(requests_left), tostring(tokens_left), tostring(wait)}
