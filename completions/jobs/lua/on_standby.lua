-- List the models that a worker loads once jobs wait for them. ARGV: seconds since it last said so, at most.
return redis.call('ZRANGEBYSCORE', prefix .. 'standby', tostring(now() - tonumber(ARGV[1])), '+inf')
