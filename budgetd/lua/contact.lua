-- Says that a replica lives, and counts those that do.
-- KEYS[1] replicas (sorted set: what a replica says of itself by the time of its last contact)
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2] replica id, and behind a space the newest format that it reads; without, it reads the first alone
-- ARGV[3] a replica silent for longer than this many ms is forgotten     ARGV[4] most replicas remembered
-- ARGV[5] 1: the newest format that all of them read is wanted
-- Returns the number of replicas, this one included; if ARGV[5] is 1, {that, the format}.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local memory = tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - memory)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[4]))
redis.call('PEXPIRE', KEYS[1], memory)
local count = redis.call('ZCARD', KEYS[1])
if ARGV[5] ~= '1' then
  return count
end
local read_by_all
for _, replica in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local reads = tonumber(string.match(replica, ' (%d+)$')) or 1
  if not read_by_all or reads < read_by_all then
    read_by_all = reads
  end
end
return { count, read_by_all }
