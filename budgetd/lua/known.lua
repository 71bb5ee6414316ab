-- Enters dependencies into the index of known ones.
-- KEYS[1] known dependencies (sorted set: name by the time of last use)
-- ARGV[1] now_ms, or "" for the server's time     ARGV[2] a name unused for longer than this many ms is forgotten
-- ARGV[3] most names remembered     ARGV[4...] names in use
-- Returns the number of names.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local memory = tonumber(ARGV[2])
for i = 4, #ARGV do
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - memory)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[3]))
redis.call('PEXPIRE', KEYS[1], memory)
return redis.call('ZCARD', KEYS[1])
