-- Count a request of an API key before it is checked at length, or one that makes no job. ARGV: the key, its rates as in
-- submit.lua (JSON). Returns {verdict, seconds until it fits, what is left of each rate}; the verdict is ok or a rate.
return tell(admit(ARGV[1], '', cjson.decode(ARGV[2]), 0, nil, now()))
