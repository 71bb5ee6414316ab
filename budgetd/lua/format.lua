-- The format in which a namespace is written; it never goes back.
-- KEYS[1] the format (string)     ARGV[1] raise it to this at least
-- Returns the format, or 0 if none was ever said.
local format, least = tonumber(redis.call('GET', KEYS[1])) or 0, tonumber(ARGV[1])
if least > format then
  redis.call('SET', KEYS[1], ARGV[1])
  return least
end
return format
