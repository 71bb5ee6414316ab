-- The sums of shares, by which each holder gets a fair one whatever the number of holders: the mirror of
-- budget/src/ledger/leases/shares.rs. Put after epoch.lua.

-- Two for each power of two.
local function bucket_of(demand)
  if demand < 2 then
    return 0
  end
  local mantissa, exponent = math.frexp(demand)
  return math.min(2 * exponent - (mantissa < 0.75 and 3 or 2), SHARE_BUCKETS - 1)
end

-- packed: nil if there are none yet.
local function unpack_shares(packed)
  shares = { weight = 0, demand = 0, least = SHARE_BUCKETS, most = -1 }
  if packed then
    packed = mark(packed, 'shares')
    local _, count, p
    _, shares.weight, shares.demand, count, p = struct.unpack(SHARES_FORMAT, packed)
    local sums = { struct.unpack('>' .. string.rep(SHARES_BUCKET_FORMAT, count), packed, p) }
    for i = 1, 3 * count, 3 do
      shares[sums[i]] = { sums[i + 1], sums[i + 2] }
    end
    if count > 0 then
      shares.least, shares.most = sums[1], sums[3 * count - 2]
    end
  end
end

-- In the order of the buckets.
local function pack_shares()
  local sums, count = {}, 0
  for at = shares.least, shares.most do
    local of = shares[at]
    if of and (of[1] ~= 0 or of[2] ~= 0) then
      sums[count + 1], sums[count + 2], sums[count + 3] = at, of[1], of[2]
      count = count + 3
    end
  end
  return struct.pack(SHARES_FORMAT .. string.rep(SHARES_BUCKET_FORMAT, count / 3), FORMAT_BYTE, shares.weight, shares.demand, count / 3,
    unpack(sums))
end

-- Adds a holder to the sums of shares, or with sign -1 takes it out.
local function change_shares(demand, weight, sign)
  if not shares then
    unpack_shares(not lending_wiped and redis.call('HGET', holders_key, ''))
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

-- The most that one unit of weight gets; nil if all demands fit.
local function level_of()
  local left, weight_left = LEASED_OUT, shares.weight
  if left - shares.demand >= weight_left then
    -- A unit of share for each unit of weight is left over. So it is before each bucket, whose average is the least of those
    -- that follow: rounding the average of what is left down never makes it less.
    return nil
  end
  for i = shares.least, shares.most do
    local sums = shares[i]
    if sums and sums[1] > 0 then
      local of_one = left > 0 and left / weight_left or 0
      of_one = of_one - of_one % 1
      if sums[2] > of_one * sums[1] then
        return of_one
      end
      left, weight_left = left - sums[2], weight_left - sums[1]
    end
  end
  return nil
end
