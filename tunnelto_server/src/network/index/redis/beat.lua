-- A sign of life of an instance.
-- KEYS: mark of this store's life, its being young, the instance, all instances, their version
-- ARGV: a mark if there is none yet, the lease in ms, the instance's name and its text, the token that it left the last
--       time, the token that it leaves now, the version of all instances that it knows, what their keys
--       begin with, whether they are wanted, the instance's text if
--       nothing of it was left
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local lease = tonumber(ARGV[2])

local born = redis.call('GET', KEYS[1])
if not born then
  born = ARGV[1]
  redis.call('SET', KEYS[1], born)
  redis.call('SET', KEYS[2], '1', 'PX', lease)
end

local before = redis.call('HMGET', KEYS[3], 'token', 'text')
local kept = before[1] == ARGV[5]
local text = kept and ARGV[4] or ARGV[10]
redis.call('HSET', KEYS[3], 'token', ARGV[6], 'text', text)
redis.call('PEXPIRE', KEYS[3], lease)
redis.call('ZADD', KEYS[4], now + lease, ARGV[3])
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
if gone > 0 or before[2] ~= text then
  redis.call('INCR', KEYS[5])
end

-- Numbers of a former life mean nothing.
local version = born .. ':' .. (redis.call('GET', KEYS[5]) or '0')
local instances = {}
if ARGV[9] == '1' and version ~= ARGV[7] then
  for _, instance in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    local other = redis.call('HGET', ARGV[8] .. instance, 'text')
    if other then
      instances[#instances + 1] = other
    end
  end
end
return { born, math.max(redis.call('PTTL', KEYS[2]), 0), kept and 1 or 0, version, instances }
