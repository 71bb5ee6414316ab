-- The complete logical state of a ledger as lines of text: the mirror of Ledger::dump.
-- Put after the constants of the scripts, whose formats it reads. KEYS as apply.lua, with all operations of the ledger; ARGV[1...] the operations' ids.
local lines = {}
local function line(format, ...)
  lines[#lines + 1] = string.format(format, ...)
end
local function hex(bytes)
  return (string.gsub(bytes, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end
local stored = redis.call('GET', KEYS[1])
if not stored then
  return { 'absent' }
end
local l = { struct.unpack(HEAD_FORMAT, stored) }
line('version %.0f %.0f', l[L_NUMBER], l[L_ID])
line('time %.0f %.0f', l[L_CLOCK], l[L_NOW])
line('admission %.0f %.0f', l[L_ADMISSION], l[L_ADMISSION + 1])
line('retry %.0f %.0f', l[L_RETRY], l[L_RETRY + 1])
line('in_flight %.0f', l[L_IN_FLIGHT])
local counters = {
  ORIGINALS_ADMITTED, RETRIES_ADMITTED, ORIGINALS_DENIED, RETRIES_DENIED, NOT_SENT, PERMITS_EXPIRED, DEPOSITED, OVERUSE,
  ACCOUNT_SIGNALS, WOULD_BE_DENIED,
}
for i = 1, 10 do
  counters[i] = string.format('%.0f', l[counters[i]])
end
line('counters %s', table.concat(counters, ' '))
for i = 0, l[L_UNIT_COUNT] - 1 do
  line('unit %.0f %.0f %.0f', struct.unpack(UNIT_FORMAT, stored, HEAD_BYTES + 1 + i * UNIT_BYTES))
end
line('generations %.0f %.0f %.0f %.0f %.0f', l[L_END + 2], l[L_PERMITS + 2], l[L_END + 4], l[L_PERMITS + 4],
  l[L_QUEUE_PERMITS])
local queued = 0
for g = 1, 3 do
  local all = redis.call('HGETALL', KEYS[g + 1])
  for i = 1, #all, 2 do
    local id, record = all[i], all[i + 1]
    if id == '' then
      -- Keeps a large generation out of the compact encoding.
    elseif #record == 1 then
      line('reservation %s %d %d', hex(id), record == '2' and 2 or 1, record == '3' and 1 or 0)
    else
      local expires, permit, admission, deposited, cost, earn, would_be = struct.unpack(RECORD_FORMAT, record)
      local start, operation, number = 0, 0, 0
      if #record > RECORD_BYTES then
        start, operation, number = struct.unpack(DETAIL_FORMAT, record, DETAIL_AT)
      end
      local text = string.format('reservation %s 0 %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', hex(id), permit,
        expires, admission, deposited, cost, earn, would_be, start, operation, operation == 0 and 0 or number)
      for from = DETAIL_BYTES + 1, #record, COST_BYTES do
        text = text .. string.format(' %.0f=%.0f', struct.unpack(COST_FORMAT, record, from))
      end
      lines[#lines + 1] = text
    end
    if g == 3 then
      queued = queued + 1
    end
  end
end
-- What the ledger says of the queue must be what is there.
if queued ~= l[L_QUEUED] or redis.call('ZCARD', KEYS[5]) ~= queued then
  line('queue of %.0f says %.0f and has %.0f due', queued, l[L_QUEUED], redis.call('ZCARD', KEYS[5]))
end
for i = 6, #KEYS do
  local packed = redis.call('GET', KEYS[i])
  if packed then
    local expires, keep, used, open, until_ms, last, terminal, earned, fingerprint, has_ref, ref =
      struct.unpack(OPERATION_FORMAT, packed)
    if keep > l[L_NOW] then
      line('operation %s %s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s', ARGV[i - 5], hex(fingerprint), expires, keep, used,
        open, until_ms, last, terminal, earned, has_ref == 1 and hex(ref) or '-')
    end
  end
end
return lines
