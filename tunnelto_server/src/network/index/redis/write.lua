-- What an instance says of a name, if the name's page has not changed.
-- KEYS: the page
-- ARGV: its version as it was read, the next one, the instance, the entry or nothing, ms for which the page is kept, what
--       instances' keys begin with
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then
  return 0
end
local field = 'by:' .. ARGV[3]
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], field)
else
  redis.call('HSET', KEYS[1], field, ARGV[4])
end
-- Entries of instances that are no more go with this.
local left = false
for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
  if other == field then
    left = true
  elseif other ~= 'version' then
    if redis.call('EXISTS', ARGV[6] .. string.sub(other, 4)) == 1 then
      left = true
    else
      redis.call('HDEL', KEYS[1], other)
    end
  end
end
if left then
  redis.call('HSET', KEYS[1], 'version', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
else
  redis.call('DEL', KEYS[1])
end
return 1
