-- All counters on Redis: a batch of what processes ask, in the order in which they ask, each whole before the next.
-- It means the same as the counters in memory (core/counters.py), and one suite of tests holds both to it.
--
-- ARGV[1] is the moment in milliseconds, empty for the server's own; ARGV[2] the operations; ARGV[3] how long answers
-- are remembered. The answers go back in one piece. On a given moment counters never expire: that clock is not Redis's.

local calls, pack, unpack_s = redis.call, struct.pack, struct.unpack
local is_given = ARGV[1] ~= ''
local now
if is_given then
  now = tonumber(ARGV[1])
else
  local time = calls('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local remembered_ms = ARGV[3]
local LEASE_MS, ASK_AGAIN_MS, SLACK_MS, MINUTE_MS = 30000, 1000, 60000, 60000
local BIG = 9007199254740991

local function keep_until(key, end_ms)
  if is_given then return end
  local want = end_ms - now + SLACK_MS
  if calls('PTTL', key) < want then calls('PEXPIRE', key, want) end
end

-- A counter's number: a window is W, count, end, length. Slices are S or M, width, kept, total of the older ones, first
-- start, last start, last count, and then start and count of each older slice. A number of another form counts as none.

local function start_of(width) return now - now % width end

local function read_slices(raw)
  local width, kept, older, first, last, count = unpack_s('<dddddd', raw, 2)
  local s = {width, kept, older, first, last, count, string.sub(raw, 50)}
  if first + kept <= now then
    if last + kept <= now then return nil end
    local rest, at = s[7], 1
    while at <= #rest do
      local start, number = unpack_s('<dd', rest, at)
      if start + kept > now then break end
      s[3] = s[3] - number
      at = at + 16
    end
    s[7] = string.sub(rest, at)
    s[4] = at <= #rest and unpack_s('<d', rest, at) or last
  elseif last > now then
    -- Time has stepped back: what was counted later than now is counted as of now.
    local current, earlier, total, later, rest = start_of(width), {}, 0, count, s[7]
    for at = 1, #rest, 16 do
      local start, number = unpack_s('<dd', rest, at)
      if start < current then
        earlier[#earlier + 1] = string.sub(rest, at, at + 15)
        total = total + number
      else
        later = later + number
      end
    end
    if last < current then error('unreachable') end
    s[3], s[5], s[6], s[7] = total, current, later, table.concat(earlier)
    s[4] = #earlier > 0 and unpack_s('<d', s[7]) or current
  end
  return s
end

local function write_slices(form, s)
  return form .. pack('<dddddd', s[1], s[2], s[3], s[4], s[5], s[6]) .. s[7]
end

-- A charge: 1 form, 2 key, 3 field, 4 length, 5 width, 6 kept, 7 ceiling, 8 cost, 9 needs, 10 is enforced, 11 keys at
-- most, 12 the field shared by those too many, 13 the field under its former name. `looked` is what was read of it.

local function read_counter(c, raw)
  local form = c[1]
  if form == 'L' then
    calls('ZREMRANGEBYSCORE', c[2], '-inf', now)
    return {used = calls('ZCARD', c[2])}
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

-- Returns what to write, and when it is over if that moment is new.
local function add_to(c, looked, cost)
  if c[1] == 'W' then
    local w = looked.window
    if w then
      return 'W' .. pack('<ddd', w[1] + cost, w[2], w[3])
    end
    return 'W' .. pack('<ddd', cost, now + c[4], c[4]), now + c[4]
  end
  local s = looked.slices
  if not s then
    local start = start_of(c[5])
    return c[1] .. pack('<dddddd', c[5], c[6], 0, start, start, cost), start + c[6]
  end
  if now < s[5] + s[1] then
    s[6] = s[6] + cost
    return write_slices(c[1], s)
  end
  s[7] = s[7] .. pack('<dd', s[5], s[6])
  s[3] = s[3] + s[6]
  s[5], s[6] = start_of(s[1]), cost
  return write_slices(c[1], s), s[5] + s[2]
end

local function end_of(c, looked)
  if c[1] == 'L' then return now + ASK_AGAIN_MS end
  if looked.window then return looked.window[2] end
  if looked.slices then return looked.slices[5] + looked.slices[2] end
  return now + c[4]
end

local function free_at(c, looked)
  local s = looked.slices
  if not s then return end_of(c, looked) end
  local left, rest = s[3] + s[6], s[7]
  for at = 1, #rest, 16 do
    local start, number = unpack_s('<dd', rest, at)
    left = left - number
    if left + c[9] <= c[7] then return start + s[2] end
  end
  return s[5] + s[2]
end

local function sweep(c)
  local all = calls('HGETALL', c[2])
  for at = 1, #all, 2 do
    local other = read_counter(c, all[at + 1])
    if not other.window and not other.slices then calls('HDEL', c[2], all[at]) end
  end
end

local function may_open(c)
  if calls('HLEN', c[2]) < c[11] then return true end
  sweep(c)
  return calls('HLEN', c[2]) < c[11]
end

-- Reads all counters of some charges. Those that stand in one hash come in one call.
local function look_all(charges)
  local looked, by_key = {}, {}
  for index, c in ipairs(charges) do
    if c[1] ~= 'L' then
      local group = by_key[c[2]]
      if group then
        group[#group + 1] = index
      else
        by_key[c[2]] = {index}
      end
    else
      looked[index] = read_counter(c)
    end
  end
  for key, indexes in pairs(by_key) do
    local fields = {}
    for at, index in ipairs(indexes) do fields[at] = charges[index][3] end
    local raws = calls('HMGET', key, unpack(fields))
    for at, index in ipairs(indexes) do
      local c, raw = charges[index], raws[at]
      if not raw and c[13] ~= '' then raw = calls('HGET', key, c[13]) end
      if not raw and c[11] > 0 and c[3] ~= c[12] and not may_open(c) then
        looked[index] = read_counter(c, calls('HGET', key, c[12]))
        looked[index].spilled = true
      else
        looked[index] = read_counter(c, raw)
      end
    end
  end
  return looked
end

local function charge_all(charges, looked, id, amount)
  local by_key, ends = {}, {}
  for index, c in ipairs(charges) do
    local cost = amount or c[8]
    if cost > 0 then
      local key = c[2]
      if c[1] == 'L' then
        calls('ZADD', key, now + LEASE_MS, id)
        if not is_given then calls('PEXPIRE', key, LEASE_MS + SLACK_MS) end
      else
        local value, end_ms = add_to(c, looked[index], cost)
        local list = by_key[key]
        if not list then
          list = {}
          by_key[key] = list
        end
        list[#list + 1] = looked[index].spilled and c[12] or c[3]
        list[#list + 1] = value
        if end_ms then ends[key] = math.max(ends[key] or 0, end_ms) end
        if c[13] ~= '' then calls('HDEL', key, c[13]) end
      end
    end
  end
  for key, list in pairs(by_key) do calls('HSET', key, unpack(list)) end
  for key, end_ms in pairs(ends) do keep_until(key, end_ms) end
end

-- Bans. A record: told, wait until, minute, refusals, minutes over, banned until, bans, seen. Rules: refusals at least,
-- per cent, minutes, grace, first, most, forget.

local function read_ban(key)
  local raw = calls('GET', key)
  if not raw then return nil end
  return {unpack_s('<dddddddd', raw)}
end

local function write_ban(key, r, rules)
  calls('SET', key, pack('<dddddddd', unpack(r, 1, 8)))
  if not is_given then calls('PEXPIRE', key, math.max(r[8], r[6], r[2], now) - now + rules[7]) end
end

local function note_refusal(key, rules, wait_until, ceiling)
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
  local over = (minute == r[3] or minute == r[3] + 1) and r[5] or 0
  local too_many = math.max(rules[1], math.floor(ceiling * rules[2] / 100))
  if minute == r[3] + 1 and r[4] <= too_many then over = 0 end
  if refusals == too_many + 1 then over = over + 1 end
  local until_ms = r[6]
  if over >= rules[3] and refusals > too_many then
    until_ms = now + math.min(rules[5] * 2 ^ math.min(bans, 20), rules[6])
    bans, refusals, over = bans + 1, 0, 0
  end
  r[3], r[4], r[5], r[6], r[7], r[8] = minute, refusals, over, until_ms, bans, now
  write_ban(key, r, rules)
end

local operations = {}

-- take: 2 id, 3 key of the answer, 4 the plan: 1 charges, 2 key of the ban or empty, 3 ban binds, 4 ban rules, 5 the
-- bucket shown: a number of a charge, 0 for none here, or a charge of its own, 6 refusals are noted. 5 only look,
-- 6 banned until (when it is known already).
function operations.t(op)
  local id, answer_key, plan, only_look = op[2], op[3], op[4], op[5]
  local answered = not only_look and calls('GET', answer_key)
  if answered then
    if answered == 'undone' then return {0, 'undone'} end
    return {1, cmsgpack.unpack(answered)}
  end
  local charges, ban_key = plan[1], plan[2]
  local looked = look_all(charges)
  local befores, hits, frees, spilled, refused = {}, {}, {}, {}, only_look
  for index, c in ipairs(charges) do
    local one = looked[index]
    befores[index] = one.used
    if one.spilled then spilled[#spilled + 1] = index - 1 end
    if one.used + c[9] > c[7] then
      hits[#hits + 1] = index - 1
      frees[#frees + 1] = free_at(c, one)
      refused = refused or c[10]
    end
  end
  local banned_until = op[6] or 0
  if ban_key ~= '' then
    local record = read_ban(ban_key)
    if record and now < record[6] then banned_until = record[6] end
  end
  if banned_until > 0 and plan[3] then refused = true end
  local shown, shown_before, shown_end = plan[5], 0, 0
  if type(shown) == 'table' then
    local one = look_all({shown})[1]
    shown_before, shown_end = one.used, end_of(shown, one)
  elseif shown > 0 then
    shown_before, shown_end = looked[shown].used, end_of(charges[shown], looked[shown])
  end
  local answer = {not refused, now, befores, hits, frees, spilled, shown_before, shown_end, banned_until}
  if only_look then return {0, answer} end
  if not refused then
    charge_all(charges, looked, id)
  elseif ban_key ~= '' and plan[6] and banned_until == 0 then
    local wait_until, ceiling = 0, 0
    for at, index in ipairs(hits) do
      local c = charges[index + 1]
      if c[10] and c[9] <= c[7] and (frees[at] > wait_until or frees[at] == wait_until and c[7] > ceiling) then
        wait_until, ceiling = frees[at], c[7]
      end
    end
    if wait_until > 0 then note_refusal(ban_key, plan[4], wait_until, ceiling) end
  end
  calls('SET', answer_key, cmsgpack.pack(answer), 'PX', remembered_ms)
  return {0, answer}
end

-- undo: 2 id, 3 key of the answer, 4 charges. What was charged is taken back whole; the id is never charged again.
function operations.u(op)
  local id, answer_key, charges = op[2], op[3], op[4]
  local answered = calls('GET', answer_key)
  calls('SET', answer_key, 'undone', 'PX', remembered_ms)
  if not answered or answered == 'undone' then return false end
  local answer = cmsgpack.unpack(answered)
  if not answer[1] then return false end
  local taken_ms = answer[2]
  local is_spilled = {}
  for _, index in ipairs(answer[6]) do is_spilled[index + 1] = true end
  for index, c in ipairs(charges) do
    local field = is_spilled[index] and c[12] or c[3]
    if c[1] == 'L' then
      calls('ZREM', c[2], id)
    elseif c[8] > 0 then
      local one = read_counter(c, calls('HGET', c[2], field))
      local w, s = one.window, one.slices
      if w and w[2] - w[3] <= taken_ms then
        calls('HSET', c[2], field, 'W' .. pack('<ddd', math.max(0, w[1] - c[8]), w[2], w[3]))
      elseif s and taken_ms >= s[5] then
        s[6] = math.max(0, s[6] - c[8])
        calls('HSET', c[2], field, write_slices(c[1], s))
      elseif s then
        local rest = s[7]
        for at = #rest - 15, 1, -16 do
          local start, number = unpack_s('<dd', rest, at)
          if start <= taken_ms then
            local less = math.min(number, c[8])
            s[3] = s[3] - less
            s[7] = string.sub(rest, 1, at - 1) .. pack('<dd', start, number - less) .. string.sub(rest, at + 16)
            calls('HSET', c[2], field, write_slices(c[1], s))
            break
          end
        end
      end
    end
  end
  return true
end

-- release: 2 id, 3 keys of leases.
function operations.r(op)
  for _, key in ipairs(op[3]) do calls('ZREM', key, op[2]) end
  return true
end

-- renew: 2 id, 3 keys of leases. How many had run out.
function operations.n(op)
  local revived = 0
  for _, key in ipairs(op[3]) do
    local until_ms = calls('ZSCORE', key, op[2])
    if not until_ms or tonumber(until_ms) <= now then revived = revived + 1 end
    calls('ZADD', key, now + LEASE_MS, op[2])
    if not is_given then calls('PEXPIRE', key, LEASE_MS + SLACK_MS) end
  end
  return revived
end

-- give back: 2 key of the mark, 3 key, 4 field, 5 cost, 6 end of its window, 7 how much faults may give back, or -1.
function operations.g(op)
  local mark, key, field, cost, end_ms, most = op[2], op[3], op[4], op[5], op[6], op[7]
  if end_ms <= now or calls('EXISTS', mark) == 1 then return false end
  local raw = calls('HGET', key, field)
  if not raw or string.sub(raw, 1, 1) ~= 'W' then return false end
  local count, stands_until, length = unpack_s('<ddd', raw, 2)
  if stands_until ~= end_ms then return false end
  if most >= 0 then
    local faults_field, given = 'faults ' .. field, 0
    local faults = calls('HGET', key, faults_field)
    if faults then
      local of_end, number = unpack_s('<dd', faults)
      if of_end == end_ms then given = number end
    end
    if given + cost > most then return false end
    calls('HSET', key, faults_field, pack('<dd', end_ms, given + cost))
  end
  calls('HSET', key, field, 'W' .. pack('<ddd', math.max(0, count - cost), end_ms, length))
  calls('SET', mark, '1', 'PX', remembered_ms)
  return true
end

-- spend: 2 charges, 3 amount.
function operations.s(op)
  charge_all(op[2], look_all(op[2]), '', op[3])
  return true
end

-- peek: 2 charges.
function operations.p(op)
  local told = {}
  for index, one in ipairs(look_all(op[2])) do
    told[index] = {one.used, end_of(op[2][index], one)}
  end
  return told
end

-- reset: 2 charges.
function operations.z(op)
  for _, c in ipairs(op[2]) do
    if c[1] == 'L' then calls('DEL', c[2]) else calls('HDEL', c[2], c[3]) end
  end
  return true
end

-- ban: 2 key, 3 until, 4 rules.
function operations.b(op)
  local r = read_ban(op[2]) or {0, 0, 0, 0, 0, 0, 0, 0}
  r[6] = op[3]
  write_ban(op[2], r, op[4])
  return true
end

-- is banned: 2 key. Until when, or 0.
function operations.i(op)
  local record = read_ban(op[2])
  return record and now < record[6] and record[6] or 0
end

-- note a refusal: 2 key of the ban, 3 rules, 4 wait until, 5 ceiling.
function operations.o(op)
  note_refusal(op[2], op[3], op[4], op[5])
  return true
end

local answers = {}
for index, op in ipairs(cmsgpack.unpack(ARGV[2])) do
  answers[index] = operations[op[1]](op)
end
return cmsgpack.pack(answers)
