-- All counters on Redis: executes a batch of operations in order, each completely before the next.
-- It has the semantics of the counters in memory (core/counting/counters.py); one test suite checks both.
--
-- ARGV[1] is the time in milliseconds, empty for the server's own clock; ARGV[2] the operations; ARGV[3] how long results
-- are remembered, in ms. Returns all results together. With a given time, keys never expire, because Redis uses its own clock.

local call, pack, unpack_s = redis.call, struct.pack, struct.unpack
local has_given_time = ARGV[1] ~= ''
local now
if has_given_time then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local result_ttl_ms = ARGV[3]
local LEASE_MS, RETRY_DELAY_MS, SLACK_MS, MINUTE_MS = 30000, 1000, 60000, 60000
local BIG = 9007199254740991

local function extend_expiry(key, end_ms)
  if has_given_time then return end
  local ttl_ms = end_ms - now + SLACK_MS
  if call('PTTL', key) < ttl_ms then call('PEXPIRE', key, ttl_ms) end
end

-- The value of a counter. A fixed window: W, count, end, length. Slices: S or M, width, retention, total of the older
-- slices, first start, last start, last count, then start and count of each older slice. Other formats are read as 0.

local function get_slice_start(width) return now - now % width end

local function read_slices(raw)
  local width, retention, older, first, last, count = unpack_s('<dddddd', raw, 2)
  local s = {width, retention, older, first, last, count, string.sub(raw, 50)}
  if first + retention <= now then
    if last + retention <= now then return nil end
    local rest, at = s[7], 1
    while at <= #rest do
      local start, number = unpack_s('<dd', rest, at)
      if start + retention > now then break end
      s[3] = s[3] - number
      at = at + 16
    end
    s[7] = string.sub(rest, at)
    s[4] = at <= #rest and unpack_s('<d', rest, at) or last
  elseif last > now then
    -- The clock stepped back: move counts that are later than now into the current slice.
    local current, earlier, total, later_count, rest = get_slice_start(width), {}, 0, count, s[7]
    for at = 1, #rest, 16 do
      local start, number = unpack_s('<dd', rest, at)
      if start < current then
        earlier[#earlier + 1] = string.sub(rest, at, at + 15)
        total = total + number
      else
        later_count = later_count + number
      end
    end
    if last < current then error('unreachable') end
    s[3], s[5], s[6], s[7] = total, current, later_count, table.concat(earlier)
    s[4] = #earlier > 0 and unpack_s('<d', s[7]) or current
  end
  return s
end

local function write_slices(form, s)
  return form .. pack('<dddddd', s[1], s[2], s[3], s[4], s[5], s[6]) .. s[7]
end

-- A charge: 1 format, 2 key, 3 field, 4 length, 5 width, 6 retention, 7 ceiling, 8 cost, 9 required, 10 is enforced,
-- 11 maximum number of keys, 12 the overflow field, 13 the field under the rule's previous name. A `state` is what
-- `read_counter` returns for it.

local function read_counter(c, raw)
  local form = c[1]
  if form == 'L' then
    call('ZREMRANGEBYSCORE', c[2], '-inf', now)
    return {used = call('ZCARD', c[2])}
  end
  if not raw or string.sub(raw, 1, 1) ~= form and not (form ~= 'W' and string.sub(raw, 1, 1) ~= 'W') then
    return {used = 0}
  end
  if form == 'W' then
    local count, end_ms, length = unpack_s('<ddd', raw, 2)
    if end_ms <= now then return {used = 0} end
    if end_ms - now > length then end_ms = now + length end
    return {used = count, window = {count, end_ms, length}}
  end
  local s = read_slices(raw)
  if not s then return {used = 0} end
  return {used = s[3] + s[6], slices = s}
end

-- Returns the new value, and its end if that is new.
local function build_value(c, state, cost)
  if c[1] == 'W' then
    local w = state.window
    if w then
      return 'W' .. pack('<ddd', w[1] + cost, w[2], w[3])
    end
    return 'W' .. pack('<ddd', cost, now + c[4], c[4]), now + c[4]
  end
  local s = state.slices
  if not s then
    local start = get_slice_start(c[5])
    return c[1] .. pack('<dddddd', c[5], c[6], 0, start, start, cost), start + c[6]
  end
  if now < s[5] + s[1] then
    s[6] = s[6] + cost
    return write_slices(c[1], s)
  end
  s[7] = s[7] .. pack('<dd', s[5], s[6])
  s[3] = s[3] + s[6]
  s[5], s[6] = get_slice_start(s[1]), cost
  return write_slices(c[1], s), s[5] + s[2]
end

local function get_end(c, state)
  if c[1] == 'L' then return now + RETRY_DELAY_MS end
  if state.window then return state.window[2] end
  if state.slices then return state.slices[5] + state.slices[2] end
  return now + c[4]
end

local function get_free_at(c, state)
  local s = state.slices
  if not s then return get_end(c, state) end
  local remaining, rest = s[3] + s[6], s[7]
  for at = 1, #rest, 16 do
    local start, number = unpack_s('<dd', rest, at)
    remaining = remaining - number
    if remaining + c[9] <= c[7] then return start + s[2] end
  end
  return s[5] + s[2]
end

local function delete_idle_fields(c)
  local all = call('HGETALL', c[2])
  for at = 1, #all, 2 do
    local state = read_counter(c, all[at + 1])
    if not state.window and not state.slices then call('HDEL', c[2], all[at]) end
  end
end

local function can_open(c)
  if call('HLEN', c[2]) < c[11] then return true end
  delete_idle_fields(c)
  return call('HLEN', c[2]) < c[11]
end

-- Reads the counters of all charges. Counters in one hash are read with one call.
local function read_all(charges)
  local states, by_key = {}, {}
  for index, c in ipairs(charges) do
    if c[1] ~= 'L' then
      local group = by_key[c[2]]
      if group then
        group[#group + 1] = index
      else
        by_key[c[2]] = {index}
      end
    else
      states[index] = read_counter(c)
    end
  end
  for key, indexes in pairs(by_key) do
    local fields = {}
    for at, index in ipairs(indexes) do fields[at] = charges[index][3] end
    local raws = call('HMGET', key, unpack(fields))
    for at, index in ipairs(indexes) do
      local c, raw = charges[index], raws[at]
      if not raw and c[13] ~= '' then raw = call('HGET', key, c[13]) end
      if not raw and c[11] > 0 and c[3] ~= c[12] and not can_open(c) then
        states[index] = read_counter(c, call('HGET', key, c[12]))
        states[index].overflowed = true
      else
        states[index] = read_counter(c, raw)
      end
    end
  end
  return states
end

local function charge_all(charges, states, id, amount)
  local by_key, ends = {}, {}
  for index, c in ipairs(charges) do
    local cost = amount or c[8]
    if cost > 0 then
      local key = c[2]
      if c[1] == 'L' then
        call('ZADD', key, now + LEASE_MS, id)
        if not has_given_time then call('PEXPIRE', key, LEASE_MS + SLACK_MS) end
      else
        local value, end_ms = build_value(c, states[index], cost)
        local list = by_key[key]
        if not list then
          list = {}
          by_key[key] = list
        end
        list[#list + 1] = states[index].overflowed and c[12] or c[3]
        list[#list + 1] = value
        if end_ms then ends[key] = math.max(ends[key] or 0, end_ms) end
        if c[13] ~= '' then call('HDEL', key, c[13]) end
      end
    end
  end
  for key, list in pairs(by_key) do call('HSET', key, unpack(list)) end
  for key, end_ms in pairs(ends) do extend_expiry(key, end_ms) end
end

-- Subtracts usage: from an open window, or from slices, the newest first. No count falls below 0.
local function take_back(c, state, amount)
  local w, s = state.window, state.slices
  local value
  if w then
    value = 'W' .. pack('<ddd', math.max(0, w[1] - amount), w[2], w[3])
  elseif s then
    local part = math.min(s[6], amount)
    s[6], amount = s[6] - part, amount - part
    local rest = s[7]
    for at = #rest - 15, 1, -16 do
      local start, number = unpack_s('<dd', rest, at)
      part = math.min(number, amount)
      s[3], amount = s[3] - part, amount - part
      rest = string.sub(rest, 1, at - 1) .. pack('<dd', start, number - part) .. string.sub(rest, at + 16)
    end
    s[7] = rest
    value = write_slices(c[1], s)
  end
  if not value then return end
  call('HSET', c[2], state.overflowed and c[12] or c[3], value)
  if c[13] ~= '' then call('HDEL', c[2], c[13]) end
end

-- Bans. A record: refused at, wait until, minute, refusals, minutes over, banned until, bans, last refusal. Ban rules:
-- minimum refusals, per cent, minutes, grace, first ban, longest ban, forget after.

local function read_ban(key)
  local raw = call('GET', key)
  if not raw then return nil end
  return {unpack_s('<dddddddd', raw)}
end

local function write_ban(key, r, rules)
  call('SET', key, pack('<dddddddd', unpack(r, 1, 8)))
  if not has_given_time then call('PEXPIRE', key, math.max(r[8], r[6], r[2], now) - now + rules[7]) end
end

local function record_refusal(key, rules, wait_until, ceiling)
  local r = read_ban(key) or {0, 0, 0, 0, 0, 0, 0, 0}
  if now >= r[2] or now < r[1] then
    r[1], r[2] = now, wait_until
    return write_ban(key, r, rules)
  end
  r[2] = math.max(wait_until, r[2])
  if now < r[1] + rules[4] then return write_ban(key, r, rules) end
  local bans = now >= math.max(r[8], r[6]) + rules[7] and 0 or r[7]
  local minute = math.floor(now / MINUTE_MS)
  local refusals = minute == r[3] and r[4] + 1 or 1
  local minutes_over = (minute == r[3] or minute == r[3] + 1) and r[5] or 0
  local too_many = math.max(rules[1], math.floor(ceiling * rules[2] / 100))
  if minute == r[3] + 1 and r[4] <= too_many then minutes_over = 0 end
  if refusals == too_many + 1 then minutes_over = minutes_over + 1 end
  local until_ms = r[6]
  if minutes_over >= rules[3] and refusals > too_many then
    until_ms = now + math.min(rules[5] * 2 ^ math.min(bans, 20), rules[6])
    bans, refusals, minutes_over = bans + 1, 0, 0
  end
  r[3], r[4], r[5], r[6], r[7], r[8] = minute, refusals, minutes_over, until_ms, bans, now
  write_ban(key, r, rules)
end

local operations = {}

-- take: 2 id, 3 key of the result, 4 the plan: 1 charges, 2 key of the ban or empty, 3 whether bans are enforced, 4 ban
-- rules, 5 the reported bucket: the number of a charge, 0 if it is on another node, or a charge of its own, 6 whether
-- refusals are recorded. 5 check without charging, 6 banned until (if it is already known).
function operations.t(op)
  local id, result_key, plan, is_check_only = op[2], op[3], op[4], op[5]
  local stored = not is_check_only and call('GET', result_key)
  if stored then
    if stored == 'undone' then return {0, 'undone'} end
    return {1, cmsgpack.unpack(stored)}
  end
  local charges, ban_key = plan[1], plan[2]
  local states = read_all(charges)
  local counts_before, hits, free_times, overflowed, refused = {}, {}, {}, {}, is_check_only
  for index, c in ipairs(charges) do
    local state = states[index]
    counts_before[index] = state.used
    if state.overflowed then overflowed[#overflowed + 1] = index - 1 end
    if state.used + c[9] > c[7] then
      hits[#hits + 1] = index - 1
      free_times[#free_times + 1] = get_free_at(c, state)
      refused = refused or c[10]
    end
  end
  local banned_until = op[6] or 0
  if ban_key ~= '' then
    local record = read_ban(ban_key)
    if record and now < record[6] then banned_until = record[6] end
  end
  if banned_until > 0 and plan[3] then refused = true end
  local bucket, bucket_before, bucket_end = plan[5], 0, 0
  if type(bucket) == 'table' then
    local state = read_all({bucket})[1]
    bucket_before, bucket_end = state.used, get_end(bucket, state)
  elseif bucket > 0 then
    bucket_before, bucket_end = states[bucket].used, get_end(charges[bucket], states[bucket])
  end
  local result = {not refused, now, counts_before, hits, free_times, overflowed, bucket_before, bucket_end, banned_until}
  if is_check_only then return {0, result} end
  if not refused then
    charge_all(charges, states, id)
  elseif ban_key ~= '' and plan[6] and banned_until == 0 then
    local wait_until, ceiling = 0, 0
    for at, index in ipairs(hits) do
      local c = charges[index + 1]
      if c[10] and c[9] <= c[7] and (free_times[at] > wait_until or free_times[at] == wait_until and c[7] > ceiling) then
        wait_until, ceiling = free_times[at], c[7]
      end
    end
    if wait_until > 0 then record_refusal(ban_key, plan[4], wait_until, ceiling) end
  end
  call('SET', result_key, cmsgpack.pack(result), 'PX', result_ttl_ms)
  return {0, result}
end

-- undo: 2 id, 3 key of the result, 4 charges. Takes back all charges of the id; the id is never charged again.
function operations.u(op)
  local id, result_key, charges = op[2], op[3], op[4]
  local stored = call('GET', result_key)
  call('SET', result_key, 'undone', 'PX', result_ttl_ms)
  if not stored or stored == 'undone' then return false end
  local result = cmsgpack.unpack(stored)
  if not result[1] then return false end
  local taken_ms = result[2]
  local has_overflowed = {}
  for _, index in ipairs(result[6]) do has_overflowed[index + 1] = true end
  for index, c in ipairs(charges) do
    local field = has_overflowed[index] and c[12] or c[3]
    if c[1] == 'L' then
      call('ZREM', c[2], id)
    elseif c[8] > 0 then
      local state = read_counter(c, call('HGET', c[2], field))
      local w, s = state.window, state.slices
      if w and w[2] - w[3] <= taken_ms then
        call('HSET', c[2], field, 'W' .. pack('<ddd', math.max(0, w[1] - c[8]), w[2], w[3]))
      elseif s and taken_ms >= s[5] then
        s[6] = math.max(0, s[6] - c[8])
        call('HSET', c[2], field, write_slices(c[1], s))
      elseif s then
        local rest = s[7]
        for at = #rest - 15, 1, -16 do
          local start, number = unpack_s('<dd', rest, at)
          if start <= taken_ms then
            local refund = math.min(number, c[8])
            s[3] = s[3] - refund
            s[7] = string.sub(rest, 1, at - 1) .. pack('<dd', start, number - refund) .. string.sub(rest, at + 16)
            call('HSET', c[2], field, write_slices(c[1], s))
            break
          end
        end
      end
    end
  end
  return true
end

-- release: 2 id, 3 keys of the leases.
function operations.r(op)
  for _, key in ipairs(op[3]) do call('ZREM', key, op[2]) end
  return true
end

-- renew: 2 id, 3 keys of the leases. Returns how many had expired.
function operations.n(op)
  local revived = 0
  for _, key in ipairs(op[3]) do
    local until_ms = call('ZSCORE', key, op[2])
    if not until_ms or tonumber(until_ms) <= now then revived = revived + 1 end
    call('ZADD', key, now + LEASE_MS, op[2])
    if not has_given_time then call('PEXPIRE', key, LEASE_MS + SLACK_MS) end
  end
  return revived
end

-- refund: 2 key of the refund mark, 3 key, 4 field, 5 cost, 6 end of its window, 7 maximum of fault refunds, or -1.
function operations.g(op)
  local mark, key, field, cost, end_ms, max_refunds = op[2], op[3], op[4], op[5], op[6], op[7]
  if end_ms <= now or call('EXISTS', mark) == 1 then return false end
  local raw = call('HGET', key, field)
  if not raw or string.sub(raw, 1, 1) ~= 'W' then return false end
  local count, current_end_ms, length = unpack_s('<ddd', raw, 2)
  if current_end_ms ~= end_ms then return false end
  if max_refunds >= 0 then
    local faults_field, refunded = 'faults ' .. field, 0
    local faults = call('HGET', key, faults_field)
    if faults then
      local counted_end, number = unpack_s('<dd', faults)
      if counted_end == end_ms then refunded = number end
    end
    if refunded + cost > max_refunds then return false end
    call('HSET', key, faults_field, pack('<dd', end_ms, refunded + cost))
  end
  call('HSET', key, field, 'W' .. pack('<ddd', math.max(0, count - cost), end_ms, length))
  call('SET', mark, '1', 'PX', result_ttl_ms)
  return true
end

-- add usage: 2 charges, 3 amount, which takes back usage if it is negative.
function operations.s(op)
  local states = read_all(op[2])
  if op[3] > 0 then
    charge_all(op[2], states, '', op[3])
  else
    for index, c in ipairs(op[2]) do take_back(c, states[index], -op[3]) end
  end
  return true
end

-- peek: 2 charges.
function operations.p(op)
  local readings = {}
  for index, state in ipairs(read_all(op[2])) do
    readings[index] = {state.used, get_end(op[2][index], state)}
  end
  return readings
end

-- reset: 2 charges.
function operations.z(op)
  for _, c in ipairs(op[2]) do
    if c[1] == 'L' then call('DEL', c[2]) else call('HDEL', c[2], c[3]) end
  end
  return true
end

-- ban: 2 key, 3 until, 4 ban rules.
function operations.b(op)
  local r = read_ban(op[2]) or {0, 0, 0, 0, 0, 0, 0, 0}
  r[6] = op[3]
  write_ban(op[2], r, op[4])
  return true
end

-- ban end: 2 key. Returns the end of the current ban, or 0.
function operations.i(op)
  local record = read_ban(op[2])
  return record and now < record[6] and record[6] or 0
end

-- record a refusal: 2 key of the ban, 3 ban rules, 4 wait until, 5 ceiling.
function operations.o(op)
  record_refusal(op[2], op[3], op[4], op[5])
  return true
end

local results = {}
for index, op in ipairs(cmsgpack.unpack(ARGV[2])) do
  results[index] = operations[op[1]](op)
end
return cmsgpack.pack(results)
