-- One call for a group of ledgers, each with steps of its own. Whatever happens to one ledger, the others are as if called
-- alone: an error is that ledger's reply. Put last.
--
-- KEYS[1...n] the ledgers
-- then for each ledger: its two generations of reservations, queued reservations, their queue, operations of its batch
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies all numbers come from
-- ARGV[4] 1: decide even if a ledger has a newer version, with the ledger's numbers
-- ARGV[5] the format to write     ARGV[6] 1: lone steps may go the short way
-- ARGV[7] the plan: a byte, how many numbers there are; then an entry for each ledger
-- then the numbers; then for each ledger its steps, packed one behind the other, and the reservation id of each, no two equal
-- Returns the reply of each ledger: its status and the answers to its steps, see layout/constants.rs; a bare integer is the
-- one answer of status 0.

local plan, may_be_short = ARGV[7], ARGV[6] == '1'
local kinds, count = string.byte(plan), (#plan - 1) / PLAN_BYTES
version_number, version_id, force, named_format = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
clock = read_clock(ARGV[1])

local ledgers, replies = redis.call('MGET', unpack(KEYS, 1, count)), {}
local args_at = 8 + kinds
keys_at = count
for i = 1, count do
  local kind, count_of_operations, count_of_steps = struct.unpack(PLAN_FORMAT, plan, PLAN_BYTES * i - PLAN_BYTES + 2)
  local given, stored, reply = ARGV[7 + kind], ledgers[i], nil
  packed_steps = ARGV[args_at]
  if may_be_short and stored and count_of_steps == 1 and count_of_operations == 0 and named_format == FORMAT_NEWEST then
    reply = apply_short(KEYS[i], stored, given, ARGV[args_at + 1])
  end
  if not reply then
    ids = { unpack(ARGV, args_at + 1, args_at + count_of_steps) }
    local done
    done, reply = pcall(apply, KEYS[i], stored, given, count_of_operations)
    if not done and type(reply) == 'string' then
      -- Redis before 7.2 has texts for errors of commands too, and those begin with a code.
      reply = redis.error_reply(string.find(reply, '^user_script') and 'ERR ' .. reply or reply)
    end
  end
  replies[i] = reply
  keys_at, args_at = keys_at + 4 + count_of_operations, args_at + 1 + count_of_steps
end
return replies
