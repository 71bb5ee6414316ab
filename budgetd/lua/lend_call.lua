-- One call of the script for a ledger that lends or may begin to: applies a batch of steps, takes heartbeats and answers a
-- sync. Reads the ledger. Put after plain.lua.
--
-- KEYS[1] ledger     KEYS[2], KEYS[3] the two generations of reservations     KEYS[4] queued reservations     KEYS[5] their queue
-- then the operations of the batch, then the keys of what is lent, see epoch.lua
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies the numbers come from
-- ARGV[4] 1: decide even if the ledger has a newer version, with the ledger's numbers
-- ARGV[5] the format to write     ARGV[6] the numbers     ARGV[7] the steps, packed one behind the other
-- ARGV[8...] the reservation id of each step, no two equal; then what epoch.lua names
-- Returns the reply as group.lua does for one ledger, and behind the answers to the steps: the epoch's number and id or 0,
-- holders, and 0 if the ledger needs no heartbeats, else 1 and the time since the last call; then the answers to asks.

local given = ARGV[6]
version_number, version_id, force, named_format = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
steps, keys_at = ARGV[7], 1
clock = read_clock(ARGV[1])
read_ledger(redis.call('GET', KEYS[1]), given, version_number, version_id)
