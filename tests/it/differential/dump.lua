-- The complete logical state of a ledger as lines of text: the mirror of Ledger::dump.
-- Put after the scripts that read what is stored. KEYS: the ledger, its generations, its queue, all operations of the ledger, and what
-- is lent; ARGV[1...] the operations' ids.
-- Time in these tests is injected, but keys expire by the server's: on a slow machine they would be gone before their time.
-- They live for a minute at least, and are looked at many times in one.
if redis.call('TIME')[2] % 16 == 0 then
  for _, key in ipairs(KEYS) do
    redis.call('PERSIST', key)
  end
end
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
read_ledger(stored)
local marked = l[L_PARTS] % 2 == PART_LENDS
line('version %.0f %.0f', l[L_NUMBER], l[L_ID])
line('time %.0f %.0f', l[L_CLOCK], l[L_NOW])
line('admission %.0f %.0f', l[L_ADMISSION], l[L_ADMISSION + 1])
line('retry %.0f %.0f', l[L_RETRY], l[L_RETRY + 1])
line('in_flight %.0f', l[L_IN_FLIGHT])
local counters = {
  L_ORIGINALS_ADMITTED, L_RETRIES_ADMITTED, L_ORIGINALS_DENIED, L_RETRIES_DENIED, L_NOT_SENT, L_PERMITS_EXPIRED,
  L_DEPOSITED, L_OVERUSE, L_ACCOUNT_SIGNALS, L_WOULD_BE_DENIED,
}
for i = 1, 10 do
  counters[i] = string.format('%.0f', l[counters[i]])
end
line('counters %s', table.concat(counters, ' '))
for i = L_UNITS, #l, L_UNIT do
  line('unit %.0f %.0f %.0f', l[i], l[i + 1], l[i + 2])
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
      record = newest_record(record)
      local _, _, expires, permit, admission, deposited, cost, earn, would_be, number = struct.unpack(RECORD_FORMAT, record)
      local start, operation, costs_at = read_details(record)
      local text = string.format('reservation %s 0 %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', hex(id), permit,
        expires, admission, deposited, cost, earn, would_be, start, operation, operation == 0 and 0 or number)
      for from = costs_at, #record, COST_BYTES do
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
local last = #KEYS - 4
for i = 6, last do
  local packed = redis.call('GET', KEYS[i])
  if packed then
    if format_of(packed, 'operation') == 1 then
      packed = operation_from_1(packed)
    end
    local _, expires, keep, used, open, until_ms, last, terminal, earned, _, fingerprint, has_ref, ref =
      struct.unpack(OPERATION_FORMAT, packed)
    if keep > l[L_NOW] then
      line('operation %s %s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s', ARGV[i - 5], hex(fingerprint), expires, keep, used,
        open, until_ms, last, terminal, earned, has_ref == 1 and hex(ref) or '-')
    end
  end
end

-- Lending.
local K_LENDING = last + 1
load_lending(KEYS[K_LENDING])
if marked ~= (lending ~= nil) then
  line('marked %s, lending %s', tostring(marked), tostring(lending ~= nil))
end
if not lending then
  return lines
end
local function amounts(a)
  local text, units = string.format('%.0f/%.0f/%.0f/%.0f', a[1], a[2], a[3], a[4]), {}
  for i = 5, #a, 3 do
    if a[i + 1] ~= 0 or a[i + 2] ~= 0 then
      units[#units + 1] = { a[i], string.format('/%.0f:%.0f:%.0f', a[i], a[i + 1], a[i + 2]) }
    end
  end
  table.sort(units, function(x, y) return x[1] < y[1] end)
  for _, unit in ipairs(units) do
    text = text .. unit[2]
  end
  return text
end
local function asked(packed, p)
  local all = {}
  while p <= #packed do
    local unit, amount
    unit, amount, p = struct.unpack(ASKED_FORMAT, packed, p)
    all[#all + 1] = string.format('(UnitId(%.0f), %.0f)', unit, amount)
  end
  return '[' .. table.concat(all, ', ') .. ']'
end
line('lease epoch %.0f %.0f identity %.0f generation %.0f dead %.0f lost %d wait %.0f quarantine %.0f debt %.0f', lending.number,
  lending.id, lending.identity, lending.generation, lending.dead, lending.lost and 1 or 0, lending.wait, lending.quarantine,
  lending.debt)
line('lease time %.0f %.0f', lending.compared, lending.replaced)
line('lease charged %s proved %s', amounts(lending.charged), amounts(lending.proved))
local sums, weight, demand = redis.call('HGET', KEYS[K_LENDING + 1], ''), 0, 0
local buckets = {}
if sums then
  local count, p
  local _
  sums = mark(sums, 'shares')
  _, weight, demand, count, p = struct.unpack(SHARES_FORMAT, sums)
  for i = 1, count do
    local at, weights, demands
    at, weights, demands, p = struct.unpack('>' .. SHARES_BUCKET_FORMAT, sums, p)
    buckets[i] = string.format('(%.0f, (%.0f, %.0f))', at, weights, demands)
  end
end
line('lease shares %.0f %.0f [%s]', weight, demand, table.concat(buckets, ', '))
local proofs = redis.call('SMEMBERS', KEYS[K_LENDING + 3])
for _, proof in ipairs(proofs) do
  line('lease proof %s', hex(proof))
end
for _, b in ipairs(lending.beats) do
  line('lease beat %.0f %.0f %.0f', b[1], b[2], b[3])
end
local all, holders = redis.call('HGETALL', KEYS[K_LENDING + 1]), 0
for i = 1, #all, 2 do
  local holder = all[i]
  if holder ~= '' then
    holders = holders + 1
    local r = unpack_record(all[i + 1])
    local due = redis.call('ZSCORE', KEYS[K_LENDING + 2], holder)
    if tonumber(due) ~= r.due then
      line('due of %s says %s', holder, tostring(due))
    end
    line('lease holder %s %.0f %.0f %.0f %.0f %.0f %.0f %s', holder, r.weight, r.demand, r.share, r.idle, r.revoked,
      r.restarted, r.due and string.format('Some(%.0f)', r.due) or 'None')
    for _, life in ipairs(r.lives) do
      local counters = {}
      for j = 1, 10 do
        counters[j] = string.format('%.0f', (struct.unpack('>i7', life.report, 7 * j - 6)))
      end
      local falls = {}
      for j = 1, #life.lingering, 2 do
        falls[#falls + 1] = string.format('(%.0f, %.0f)', life.lingering[j], life.lingering[j + 1])
      end
      line('lease life %s %s %.0f %.0f %.0f slots %.0f [%s] charge %s usage [%s] %s measured %.0f %.0f %s', holder,
        hex(life.incarnation), life.sequence, life.nonce, life.answered, life.slots,
        table.concat(falls, ', '), amounts(life.charge), table.concat(counters, ', '),
        asked(life.report, REPORT_BYTES + 1), life.measured_ms, struct.unpack('>i7', life.measured), asked(life.measured, 9))
      for _, g in ipairs(life.grants) do
        local curve = {}
        for j = 1, #g.curve, 2 do
          curve[#curve + 1] = string.format('(%.0f, %.0f)', g.curve[j], g.curve[j + 1])
        end
        local _, moved_at = unpack_amounts(g.said, 1)
        line('lease grant %s %s %.0f %.0f value %s moved %s curve [%s] ttl %.0f', holder, hex(life.incarnation), g.generation,
          g.granted, amounts(g.value), g.generation == life.answered and amounts((unpack_amounts(g.said, moved_at))) or '-',
          table.concat(curve, ', '), g.ttl)
      end
    end
  end
end
-- What lending says of its other keys must be what is there.
if holders ~= lending.holders or redis.call('ZCARD', KEYS[K_LENDING + 2]) ~= holders or #proofs ~= lending.proofs then
  line('%d holders, %d due, %d proofs, but %d and %d said', holders, redis.call('ZCARD', KEYS[K_LENDING + 2]), #proofs,
    lending.holders, lending.proofs)
end
local first = redis.call('ZRANGE', KEYS[K_LENDING + 2], 0, 0, 'WITHSCORES')[2]
if first and tonumber(first) < lending.next_due then
  line('due at %s, but next due %.0f', first, lending.next_due)
end
return lines
