-- A worker's heartbeat: its model is served. By the clock of Redis, which all others are compared with. ARGV: model.
return redis.call('ZADD', prefix .. 'served', tostring(now()), ARGV[1])
