-- Opening epochs, charging holders and stepping down: the mirror of budget/src/ledger/leases.rs and leases/holders.rs, same
-- names, same order. Only in the variant of apply.lua for ledgers that lend. Put after lending.lua.
--
-- KEYS, the last four: lending (string), holders (hash: holder -> record; '' -> sums of shares), due (sorted set: holder by
-- the time of the next change of its charge), proofs (set of incarnations)
-- ARGV, the last two: the policy's terms, and the ground with asks if there are any

-- Ground and terms of this call.
local ground_packed, given_terms = table.remove(ARGV), unpack_terms(table.remove(ARGV), 1)
local proofs_key, due_key, holders_key = table.remove(KEYS), table.remove(KEYS), table.remove(KEYS)
local lending_key = table.remove(KEYS)
local ground = {}
local has_ask, ask_at
ground.identity, ground.number, ground.id, ground.fresh_id, ground.fresh_store, ground.has_beat, ground.boot, ground.clock,
  has_ask, ask_at = struct.unpack(GROUND_FORMAT, ground_packed)

-- The holders' records as far as they were read, by name; a record that has gone is false. What is to be written.
local records, dirty, dues_of_holders, new_proofs = {}, {}, {}, {}
-- Records that were written anew without being taken apart, packed.
local renewed = {}
local shares, shares_dirty, lending_wiped, lending_over, reservations_gone = nil, false, false, false, false

-- No ledger was found, and nothing has begun one.
local absent, call_number, call_id = not l, tonumber(ARGV[2]), tonumber(ARGV[3])
load_lending(lending_key)
if lending and (has_ask == 1 or ground.has_beat == 1) then
  -- What is said of the holders must be what is there: keys may have been evicted.
  local fields = lending.holders > 0 and lending.holders + 1 or 0
  lending.torn = redis.call('HLEN', holders_key) ~= fields or redis.call('ZCARD', due_key) ~= lending.holders
    or redis.call('SCARD', proofs_key) ~= lending.proofs
end

-- Computes with the numbers n from now on: clips, never refills.
local function fit()
  if n[N_LIMITED] == 1 then
    adopt(l, L_ADMISSION, n[N_ADMISSION], n[N_ADMISSION + 1], n[N_ADMISSION + 2])
  else
    l[L_ADMISSION], l[L_ADMISSION + 1] = 0, 0
  end
  adopt(l, L_RETRY, n[N_RETRY], n[N_RETRY + 1], n[N_RETRY + 2])
  local new = { unpack(l, 1, L_UNITS - 1) }
  for i = N_UNITS, #n, UNIT_NUMBERS do
    local at, balance = #new + 1, 0
    for old = L_UNITS, #l, L_UNIT do
      if l[old] == n[i] then
        balance = l[old + 1]
      end
    end
    new[at], new[at + 1], new[at + 2] = n[i], balance, 0
    adopt(new, at + 1, n[i + 1], n[i + 2], n[i + 3])
  end
  l = new
  l[L_UNIT_COUNT] = (#n - N_UNITS + 1) / UNIT_NUMBERS
end

-- Sets what direct callers share to what is not charged. True if that changed: then the levels are to be clipped, and the
-- numbers n made anew.
local function set_direct(amounts)
  local before = lending.direct
  local same = before and #before == #amounts
  for i = 1, same and #amounts or 0 do
    same = same and before[i] == amounts[i]
  end
  if not same then
    lending.direct, lending_dirty = amounts, true
  end
  return not same
end

-- Opens an epoch above every one that is known. lost: with empty levels and no permits.
local function open_epoch(presented, lost)
  local t, now = lending.terms, l[L_NOW]
  -- At the end of all numbers another id is what counts as higher.
  lending.number = math.min(math.max(lending.number, ground.number, presented) + 1, EPOCH_NUMBER_MAX)
  lending.id, lending.identity, lending.lost = ground.fresh_id, ground.identity, lost
  lending.generation, lending.dead, lending.debt, lending.beats = 0, 0, 0, {}
  lending.charged, lending.proved, lending.direct = ZERO, ZERO, nil
  lending.holders, lending.proofs, lending.next_due, lending.torn = 0, 0, NEVER, false
  -- What passed before it opened earns nothing in it.
  l[L_CLOCK], lending.wait, lending.quarantine = clock, now, now
  if ground.fresh_store == 0 then
    lending.wait, lending.quarantine = now + t.overlap, now + t.longest + t.margin + t.overlap
  end
  records, dirty, dues_of_holders, new_proofs, renewed = {}, {}, {}, {}, {}
  shares, shares_dirty, lending_dirty, lending_wiped = nil, false, true, true
  if lost then
    reservations_gone = true
    l[L_IN_FLIGHT], l[L_END + 2], l[L_PERMITS + 2], l[L_END + 4], l[L_PERMITS + 4] = 0, 0, 0, 0, 0
    l[L_NEWER], l[L_SIZE + 1], l[L_SIZE + 2], l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL] = 1, 0, 0, 0, 0, 0
    l[L_ADMISSION], l[L_ADMISSION + 1], l[L_RETRY], l[L_RETRY + 1] = 0, 0, 0, 0
    for at = L_UNITS, #l, L_UNIT do
      l[at + 1], l[at + 2] = 0, 0
    end
  end
end

-- Opens an epoch where state is missing, is another store's, or is older than what the caller remembers. own: the ledger's
-- numbers; given: those of the call, nil if the ledger has newer ones.
local function open_epoch_if_lost(own, given)
  if not lending then
    -- Numbers of the same version begin lending only where an earlier release of this program has not.
    local newer = absent or call_number ~= l[L_NUMBER] or call_id ~= l[L_ID]
    if not (given and given_terms.some and (newer or given_terms.part > 0)) then
      return
    end
    lending, whole = { number = 0, terms = given_terms }, given
    -- Nothing was ever decided here: the state is missing. Otherwise leases are permitted from now on, and direct callers
    -- keep what they have.
    local missing = leased_mark
    if not missing then
      local sum = l[ORIGINALS_ADMITTED] + l[DEPOSITED]
      for i = RETRIES_ADMITTED, WOULD_BE_DENIED do
        sum = sum + l[i]
      end
      missing = sum == 0
    end
    open_epoch(0, missing)
    return
  end
  whole = own
  if lending.identity ~= ground.identity or lending.torn or not leased_mark
    or (ground.number > 0 and (ground.number > lending.number
      or (ground.number == lending.number and ground.id ~= lending.id))) then
    open_epoch(0, true)
  else
    n = within(lending.direct)
  end
end

-- Replaces what is charged to a holder in the sum.
local function recharge(before, after)
  if before == after then
    return
  end
  local charged = lending.charged
  if charged[5] or after[5] then
    local total = difference(sum(charged, after), before)
    charged = { total[1], total[2], total[3], total[4] }
    for i = 5, #total, 3 do
      if total[i + 1] ~= 0 or total[i + 2] ~= 0 then
        local at = #charged
        charged[at + 1], charged[at + 2], charged[at + 3] = total[i], total[i + 1], total[i + 2]
      end
    end
    lending.charged = charged
  else
    lending.charged = {
      charged[1] + after[1] - before[1], charged[2] + after[2] - before[2], charged[3] + after[3] - before[3],
      charged[4] + after[4] - before[4],
    }
  end
end

-- Two for each power of two.
local function bucket_of(demand)
  if demand < 2 then
    return 0
  end
  local mantissa, exponent = math.frexp(demand)
  return math.min(2 * exponent - (mantissa < 0.75 and 3 or 2), SHARE_BUCKETS - 1)
end

local function load_shares()
  shares = { weight = 0, demand = 0, least = SHARE_BUCKETS, most = -1 }
  local packed = not lending_wiped and redis.call('HGET', holders_key, '')
  if packed then
    local count, p
    shares.weight, shares.demand, count, p = struct.unpack(SHARES_FORMAT, packed)
    for _ = 1, count do
      local at, weights, demands
      at, weights, demands, p = struct.unpack(SHARES_BUCKET_FORMAT, packed, p)
      shares[at] = { weights, demands }
      shares.least, shares.most = math.min(shares.least, at), at
    end
  end
end

-- Adds a holder to the sums of shares, or with sign -1 takes it out.
local function change_shares(demand, weight, sign)
  if not shares then
    load_shares()
  end
  local at = bucket_of(weight == 1 and demand or div(demand, weight))
  local sums = shares[at]
  if not sums then
    sums = { 0, 0 }
    shares[at] = sums
    shares.least, shares.most = math.min(shares.least, at), math.max(shares.most, at)
  end
  sums[1], sums[2] = sums[1] + weight * sign, sums[2] + demand * sign
  shares.weight, shares.demand = shares.weight + weight * sign, shares.demand + demand * sign
  shares_dirty = true
end

-- Part and end of the step that is charged: each ends a margin later than the holder's. nil beyond the curve.
local function step_of(g, now)
  local ends, curve = g.granted + lending.terms.margin, g.curve
  for i = 1, #curve, 2 do
    ends = ends + curve[i + 1]
    if now < ends then
      return curve[i], ends
    end
  end
  return nil
end

-- At least so many slots are charged until then. Kept are falling numbers by rising times.
local function linger(life, slots, until_ms)
  if slots <= 0 then
    return
  end
  local before, falls, placed = life.lingering, {}, false
  for i = 1, #before, 2 do
    if before[i] >= slots and before[i + 1] >= until_ms then
      return
    end
  end
  for i = 1, #before, 2 do
    local at = #falls
    if not placed and before[i + 1] >= until_ms then
      falls[at + 1], falls[at + 2], at, placed = slots, until_ms, at + 2, true
    end
    if before[i] > slots or before[i + 1] > until_ms then
      falls[at + 1], falls[at + 2] = before[i], before[i + 1]
    end
  end
  if not placed then
    local at = #falls
    falls[at + 1], falls[at + 2] = slots, until_ms
  end
  if #falls > 2 * LINGERING_MAX then
    -- The two that differ least are one: the larger number for the longer time.
    local least, join_at = NEVER, 1
    for i = 1, #falls - 3, 2 do
      if falls[i] - falls[i + 2] < least then
        least, join_at = falls[i] - falls[i + 2], i
      end
    end
    falls[join_at + 2] = falls[join_at]
    table.remove(falls, join_at)
    table.remove(falls, join_at)
  end
  life.lingering = falls
end

-- The maximum over the grants. Slots that go are charged for the life of the permits taken in them.
local function charge_again(life, now, ttl)
  local most, grants = ZERO, life.grants
  for i = 1, #grants do
    local part = step_of(grants[i], now)
    if part then
      local value = scaled(grants[i].value, part, PPM)
      most = most == ZERO and value or most_of(most, value)
    end
  end
  if most[4] < life.slots then
    linger(life, life.slots, now + ttl)
  end
  life.slots, life.charged_at = most[4], now
  local lingering = life.lingering[1]
  if lingering and lingering > most[4] then
    most = { unpack(most) }
    most[4] = lingering
  end
  life.charge = most
end

-- The longest life of a permit of these.
local function ttl_of(grants)
  local ttl = 0
  for i = 1, #grants do
    ttl = math.max(ttl, grants[i].ttl)
  end
  return ttl
end

-- Drops the grants before one that the holder has quoted.
local function quoted(record, life, generation, now)
  local before, kept, grants = record_charge(record), {}, life.grants
  for i = 1, #grants do
    if grants[i].generation >= generation then
      kept[#kept + 1] = grants[i]
    end
  end
  life.grants = kept
  charge_again(life, now, ttl_of(grants))
  recharge(before, record_charge(record))
end

-- Drops what has ended of a life. Returns when its charge changes next, nil if nothing is left.
local function step_down_life(life, now)
  local lingering, grants, kept, next_ms = life.lingering, life.grants, {}, nil
  -- Nothing falls twice at the same time.
  local again = life.charged_at ~= now
  while lingering[2] and lingering[2] <= now do
    table.remove(lingering, 1)
    table.remove(lingering, 1)
    again = true
  end
  for i = 1, #grants do
    local part, ends = step_of(grants[i], now)
    if part then
      kept[#kept + 1] = grants[i]
      next_ms = next_ms and next_ms < ends and next_ms or ends
    end
  end
  life.grants = kept
  if again then
    charge_again(life, now, ttl_of(grants))
    lingering = life.lingering
  end
  local ends = lingering[2]
  if ends and not (next_ms and next_ms < ends) then
    next_ms = ends
  end
  return next_ms
end

-- Brings the charge of one holder to the present and forgets it when nothing is left.
local function refresh(holder, now)
  local r = records[holder]
  if not r then
    return
  end
  local before, lives, next_ms = record_charge(r), {}, nil
  for i = 1, #r.lives do
    local life = r.lives[i]
    local changes_ms = step_down_life(life, now)
    if changes_ms then
      lives[#lives + 1] = life
      next_ms = next_ms and next_ms < changes_ms and next_ms or changes_ms
    end
  end
  r.lives = lives
  r.due, dirty[holder], dues_of_holders[holder], lending_dirty = next_ms, true, next_ms or false, true
  if next_ms then
    lending.next_due = next_ms < lending.next_due and next_ms or lending.next_due
  else
    change_shares(r.demand, r.weight, -1)
    records[holder] = false
    lending.holders = lending.holders - 1
  end
  recharge(before, record_charge(r))
end

-- Steps charges down whose time has come, a bounded number of them. Stepping down late is safe.
local function step_down(now)
  if now < lending.next_due then
    return
  end
  local heads = redis.call('ZRANGEBYSCORE', due_key, '-inf', now, 'LIMIT', 0, DUE_PER_CALL_MAX)
  -- What comes next, unless one of these does.
  local first = redis.call('ZRANGE', due_key, #heads, #heads, 'WITHSCORES')
  lending.next_due, lending_dirty = first[2] and tonumber(first[2]) or NEVER, true
  if #heads > 0 then
    local found = redis.call('HMGET', holders_key, unpack(heads))
    for i = 1, #heads do
      if found[i] then
        records[heads[i]] = unpack_record(found[i])
        refresh(heads[i], now)
      else
        -- Found out by the next heartbeat.
        dues_of_holders[heads[i]] = false
      end
    end
  end
end

-- Notes a host's clock and charges what ledger time has gained on it since its last heartbeat.
local function beat(now)
  local beats, known = {}, nil
  for _, b in ipairs(lending.beats) do
    if b[1] == ground.boot and not known then
      known = b
    else
      beats[#beats + 1] = b
    end
  end
  local anchor = nil
  if known then
    local passed = math.max(0, ground.clock - known[2])
    local gained = now - lending.debt - known[3] - passed
    lending.debt = lending.debt + math.max(0, gained)
    if gained <= 0 and gained >= -LAG_KEPT_MS then
      anchor = known
    end
  end
  if #beats >= BEATS_MAX then
    table.remove(beats, 1)
  end
  beats[#beats + 1] = anchor or { ground.boot, ground.clock, now - lending.debt }
  lending.beats, lending_dirty = beats, true
end

-- Whether new leases may be given.
local function permits()
  return lending.terms.some and lending.terms.part > 0
end

-- Takes newer numbers. A lowered quota makes earlier grants dead for replays.
local function adopt_terms(numbers)
  local before, before_ms = leasable(), total_ms(lending.terms.curve)
  whole, lending.direct, lending_dirty = numbers, nil, true
  local t, given = lending.terms, given_terms
  if given.some then
    lending.terms = given
  else
    t.some, t.slots_limited, t.priority = false, given.slots_limited, given.priority
  end
  local after = leasable()
  local lowered = #after < #before or not permits() or total_ms(lending.terms.curve) < before_ms
  for i = 1, 4 do
    lowered = lowered or after[i] < before[i]
  end
  for i = 5, #after, 3 do
    local at = part_of(before, after[i])
    lowered = lowered or (at and (after[i + 1] < before[at + 1] or after[i + 2] < before[at + 2]))
  end
  if lowered then
    lending.dead = lending.generation
  end
end

local function is_over(now)
  return lending.holders == 0 and now >= slots_until() and now >= lending.wait
end

-- Whether ledger time needs heartbeats: something is lent or unknown; or leases are permitted, so that no call advances
-- time by more than a step, and there is something that time brings back.
local function needs_beats(now)
  if not is_over(now) then
    return true
  end
  local function fills(at, i)
    return n[i] > 0 and l[at] < n[i + 2]
  end
  local gains = (n[N_LIMITED] == 1 and fills(L_ADMISSION, N_ADMISSION)) or fills(L_RETRY, N_RETRY)
    or (lending.terms.slots_limited and l[L_IN_FLIGHT] > 0)
  for i = 0, l[L_UNIT_COUNT] - 1 do
    gains = gains or fills(L_UNITS + i * L_UNIT + 1, N_UNITS + i * UNIT_NUMBERS + 1)
  end
  return permits() and gains
end

-- The part of Ledger::begin that concerns leases, after refilling. adopted: newer numbers, or nil.
local function begin_lending(adopted)
  local now = l[L_NOW]
  if ground.has_beat == 1 then
    beat(now)
  end
  if adopted then
    adopt_terms(adopted)
  elseif call_number == l[L_NUMBER] and call_id == l[L_ID] then
    -- What no version counts: settings of the caller, and whether it remembers leases that were permitted a moment ago.
    local t, g = lending.terms, given_terms
    if not g.some then
      if t.some and not permits() then
        t.some, lending_dirty = false, true
      end
    elseif t.margin ~= g.margin or t.overlap ~= g.overlap or t.step_max ~= g.step_max then
      t.margin, t.overlap, t.step_max, lending_dirty = g.margin, g.overlap, g.step_max, true
    end
  end
  step_down(now)
  if now >= lending.quarantine and lending.proofs > 0 then
    lending.proofs, lending.proofs_gone, lending_dirty = 0, true, true
  end
  if now >= slots_until() then
    local proved = lending.proved
    if #proved > 4 or proved[1] + proved[2] + proved[3] + proved[4] > 0 then
      lending.proved, lending_dirty = ZERO, true
    end
  end
  if not lending.terms.some and is_over(now) then
    n = whole
    lending, whole, lending_over = nil, nil, true
    fit()
    return
  end
  if set_direct(direct(now)) then
    n = within(lending.direct)
    fit()
  end
end

-- Writes what has changed, after the reservations.
local function write_lending(idle_ttl)
  local holders, due, proofs = holders_key, due_key, proofs_key
  if lending_over then
    redis.call('UNLINK', lending_key, holders, due, proofs)
  end
  if not lending then
    return
  end
  local set, gone, scores, over = {}, {}, {}, {}
  for holder in pairs(dirty) do
    local r = records[holder]
    if r then
      set[#set + 1], set[#set + 2] = holder, pack_record(r)
    else
      gone[#gone + 1] = holder
    end
  end
  for holder, packed in pairs(renewed) do
    set[#set + 1], set[#set + 2] = holder, packed
  end
  if shares_dirty and lending.holders > 0 then
    local count, buckets = 0, ''
    for at = 0, SHARE_BUCKETS - 1 do
      local sums = shares[at]
      if sums and (sums[1] ~= 0 or sums[2] ~= 0) then
        count, buckets = count + 1, buckets .. struct.pack(SHARES_BUCKET_FORMAT, at, sums[1], sums[2])
      end
    end
    set[#set + 1], set[#set + 2] = '', struct.pack(SHARES_FORMAT, shares.weight, shares.demand, count) .. buckets
  end
  for holder, at_ms in pairs(dues_of_holders) do
    if at_ms then
      scores[#scores + 1], scores[#scores + 2] = at_ms, holder
    else
      over[#over + 1] = holder
    end
  end
  if lending_wiped or (lending.holders == 0 and #gone > 0) then
    redis.call('UNLINK', holders, due)
    gone, over = {}, {}
  end
  if lending_wiped or lending.proofs_gone then
    redis.call('UNLINK', proofs)
  end
  if #set > 0 then
    redis.call('HSET', holders, unpack(set))
  end
  if #gone > 0 then
    redis.call('HDEL', holders, unpack(gone))
  end
  if #scores > 0 then
    redis.call('ZADD', due, unpack(scores))
  end
  if #over > 0 then
    redis.call('ZREM', due, unpack(over))
  end
  if #new_proofs > 0 then
    redis.call('SADD', proofs, unpack(new_proofs))
  end
  if #set + #new_proofs > 0 then
    for _, key in ipairs({ holders, due, proofs }) do
      if idle_ttl > 0 then
        redis.call('PEXPIRE', key, idle_ttl)
      else
        redis.call('PERSIST', key)
      end
    end
  end
  if not lending_dirty and idle_ttl == 0 then
    return
  end
  local t = lending.terms
  local packed = {
    struct.pack(LENDING_FORMAT, lending.number, lending.id, lending.identity, lending.generation, lending.dead,
      lending.lost and 1 or 0, lending.wait, lending.quarantine, lending.debt, lending.next_due, lending.holders,
      lending.proofs),
    struct.pack(TERMS_FORMAT, t.some and 1 or 0, t.slots_limited and 1 or 0, t.priority[1], t.priority[2], t.priority[3],
      t.part, t.widest, t.longest, t.margin, t.overlap, t.step_max),
    curves[t.curve], struct.pack('B', #lending.beats),
  }
  for _, b in ipairs(lending.beats) do
    packed[#packed + 1] = struct.pack(BEAT_FORMAT, b[1], b[2], b[3])
  end
  packed[#packed + 1] = pack_amounts(lending.direct)
  packed[#packed + 1] = pack_amounts(lending.charged)
  packed[#packed + 1] = pack_amounts(lending.proved)
  if idle_ttl > 0 then
    redis.call('SET', lending_key, table.concat(packed), 'PX', idle_ttl)
  else
    redis.call('SET', lending_key, table.concat(packed))
  end
end

-- The numbers of the call, nil where the ledger has newer ones.
local given_numbers
if not l or call_number > l[L_NUMBER] or (call_number == l[L_NUMBER] and call_id >= l[L_ID]) then
  given_numbers = unpack_numbers(ARGV[5], 1)
end
if l then
  open_epoch_if_lost(n, given_numbers)
end
