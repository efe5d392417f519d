-- An instance is no more.
-- KEYS: the instance, all instances, their version
-- ARGV: its name
redis.call('DEL', KEYS[1])
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
  redis.call('INCR', KEYS[3])
end
return 1
