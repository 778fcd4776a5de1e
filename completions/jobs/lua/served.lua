-- A worker's heartbeat: its model is served now, by Redis's clock. ARGV: model.
return redis.call('ZADD', prefix .. 'served', tostring(now()), ARGV[1])
