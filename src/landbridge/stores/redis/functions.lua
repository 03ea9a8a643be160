-- What Landbridge does inside Redis or Valkey. Each function is atomic. KEYS[1] is the unit's record; every other
-- key of the unit begins with it, and so is in the same slot of a cluster:
--
--   U             hash: epoch; claimant, who has claimed it; number, of the last commit of that epoch; past:E, the last number of an earlier
--                 epoch E; batches, the number of the newest stored batch
--   U:logs        hash: log -> "first end bytes time forgotten"
--   U:log:L       sorted set: "first end time size batch crc choice" by end; the batches of log L. The choice says which messages
--                 of the batch the log has, as = and hexadecimal digits; - where it has all of them
--   U:data:B      string: stored batch B
--   U:shared      hash: stored batch -> how many more entries of logs have it than one
--   U:ledger:L    hash: producer -> "last born\n" and the entry; last is empty where the entry has none
--   U:last:L      sorted set: producers by last
--   U:kinds       set: the kinds of documents
--   U:docs:K      hash: key -> value, of the documents of kind K
--   U:keys:K      sorted set: their keys, in the order of their bytes
--
-- Numbers are whole and below 2^53, which a double holds exactly. Numbers of logs may be larger: they are text.

-- While the library is loaded there is no redis.call yet.
local function call(...) return redis.call(...) end
local MOST_PAST = 16

local function text(number) return string.format('%.0f', number) end

local function bounds_of(unit, log)
  local raw = call('HGET', unit .. ':logs', log)
  if not raw then return nil end
  local first, last, bytes, time, forgotten = raw:match('^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {first = tonumber(first), last = tonumber(last), bytes = tonumber(bytes), time = tonumber(time),
          forgotten = tonumber(forgotten)}
end

local function put_bounds(unit, log, bounds)
  call('HSET', unit .. ':logs', log, text(bounds.first) .. ' ' .. text(bounds.last) .. ' ' .. text(bounds.bytes) ..
       ' ' .. text(bounds.time) .. ' ' .. text(bounds.forgotten))
end

-- An entry of a log, taken apart.
local function parsed(entry)
  local first, last, time, size, batch, crc, choice = entry:match('^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {first = tonumber(first), last = tonumber(last), time = tonumber(time), size = tonumber(size),
          batch = batch, crc = crc, choice = choice}
end

local function find(unit, log, first)
  local found = call('ZRANGEBYSCORE', unit .. ':log:' .. log, '(' .. first, '+inf', 'LIMIT', 0, 1)[1]
  if not found then return nil end
  local entry = parsed(found)
  if entry.first ~= tonumber(first) then return nil end
  return entry
end

-- While a slot is on its way to another server, its keys are at both. A key that is at neither can't be accessed then:
-- the function ends here, before it has written anything.
local function check_whole(unit) call('EXISTS', unit .. ':none') end

-- How many arguments each write has behind its letter.
local WIDTH = {A = 6, C = 7, T = 3, D = 1, P = 3, X = 2, L = 5, F = 2}

-- Look at every write before any is done: only appends and copies can be refused. Returns the refusal, or nil.
local function refusal(unit, args)
  local ahead, gone, added, dropped = {}, {}, {}, {}
  local at, index = 3, 0
  while args[at] do
    local kind, log = args[at], args[at + 1]
    local known = ahead[log]
    if known == nil and (kind == 'A' or kind == 'C' or kind == 'T') then
      known = bounds_of(unit, log) or false
      ahead[log] = known
    end
    local source = nil
    if kind == 'C' then
      local from, first, choice = args[at + 5], args[at + 6], args[at + 7]
      source = added[from] and added[from][first]
      if not source and not dropped[from] then source = find(unit, from, first) end
      if source and source.last <= (gone[from] or 0) then source = nil end
      if not source then return {'SOURCE', index, '', '-'} end
      local count, there = tonumber(args[at + 3]) - tonumber(args[at + 2]), source.last - tonumber(first)
      local fits = count == there
      if choice ~= '-' then fits = source.choice == '-' and count <= there end
      if not fits then return {'SOURCE', index, text(source.last), source.choice} end
    end
    if kind == 'A' or kind == 'C' then
      local first, last, time = args[at + 2], tonumber(args[at + 3]), tonumber(args[at + 4])
      if known and (known.last ~= tonumber(first) or time < known.time) then
        return {'GAP', index, text(known.last), text(known.time)}
      end
      ahead[log] = {last = last, time = time}
      added[log] = added[log] or {}
      local choice = '-'
      if kind == 'C' then
        choice = args[at + 7]
        if choice == '-' then choice = source.choice end
      end
      added[log][first] = {last = last, choice = choice}
    elseif kind == 'T' then
      local before = tonumber(args[at + 2])
      gone[log] = math.max(gone[log] or 0, math.min(before, known and known.last or 0))
    elseif kind == 'D' then
      ahead[log], gone[log], added[log], dropped[log] = false, nil, nil, true
    end
    at, index = at + 1 + WIDTH[kind], index + 1
  end
  return nil
end

local function enter(unit, log, first, last, time, size, batch, crc, choice)
  local bounds = bounds_of(unit, log)
  call('ZADD', unit .. ':log:' .. log, last,
       first .. ' ' .. last .. ' ' .. time .. ' ' .. text(size) .. ' ' .. batch .. ' ' .. crc .. ' ' .. choice)
  if bounds then
    bounds.last, bounds.time, bounds.bytes = tonumber(last), tonumber(time), bounds.bytes + size
  else
    bounds = {first = tonumber(first), last = tonumber(last), bytes = size, time = tonumber(time), forgotten = 0}
  end
  put_bounds(unit, log, bounds)
end

-- An entry is gone: its stored batch goes with it, if it was the last that had it.
local function release(unit, batch)
  local more = call('HGET', unit .. ':shared', batch)
  if not more then
    call('UNLINK', unit .. ':data:' .. batch)
  elseif more == '1' then
    call('HDEL', unit .. ':shared', batch)
  else
    call('HINCRBY', unit .. ':shared', batch, -1)
  end
end

-- Forget the producers whose last entry is below. Returns when the youngest of them was born.
local function forget(unit, log, before)
  local born = 0
  local ledger, by_last = unit .. ':ledger:' .. log, unit .. ':last:' .. log
  for _, producer in ipairs(call('ZRANGEBYSCORE', by_last, '-inf', '(' .. text(before))) do
    born = math.max(born, tonumber(call('HGET', ledger, producer):match('^%S* (%S+)\n')))
    call('HDEL', ledger, producer)
    call('ZREM', by_last, producer)
  end
  return born
end

local function trim(unit, log, before, may_be_ledger_only)
  local bounds = bounds_of(unit, log)
  if may_be_ledger_only and (not bounds or bounds.last == 0) then
    local forgotten = math.max(bounds and bounds.forgotten or 0, forget(unit, log, before))
    put_bounds(unit, log, {first = 0, last = 0, bytes = 0, time = 0, forgotten = forgotten})
    return
  end
  if not bounds then return end
  local entries = unit .. ':log:' .. log
  local going = call('ZRANGEBYSCORE', entries, '-inf', text(before))
  if #going == 0 then return end
  for _, each in ipairs(going) do
    local entry = parsed(each)
    bounds.bytes = bounds.bytes - entry.size
    release(unit, entry.batch)
  end
  call('ZREMRANGEBYSCORE', entries, '-inf', text(before))
  local left = call('ZRANGE', entries, 0, 0)[1]
  bounds.first = left and parsed(left).first or bounds.last
  bounds.forgotten = math.max(bounds.forgotten, forget(unit, log, bounds.first))
  put_bounds(unit, log, bounds)
end

local function drop(unit, log)
  local entries = unit .. ':log:' .. log
  for _, each in ipairs(call('ZRANGE', entries, 0, -1)) do release(unit, parsed(each).batch) end
  call('UNLINK', entries, unit .. ':ledger:' .. log, unit .. ':last:' .. log)
  call('HDEL', unit .. ':logs', log)
end

local function apply(unit, args)
  local at = 3
  while args[at] do
    local kind, log = args[at], args[at + 1]
    if kind == 'A' then
      local batch = text(call('HINCRBY', unit, 'batches', 1))
      call('SET', unit .. ':data:' .. batch, args[at + 6])
      enter(unit, log, args[at + 2], args[at + 3], args[at + 4], #args[at + 6], batch, args[at + 5], '-')
    elseif kind == 'C' then
      local entry = find(unit, args[at + 5], args[at + 6])
      call('HINCRBY', unit .. ':shared', entry.batch, 1)
      local choice = args[at + 7]
      if choice == '-' then choice = entry.choice end
      enter(unit, log, args[at + 2], args[at + 3], args[at + 4], entry.size, entry.batch, entry.crc, choice)
    elseif kind == 'T' then
      trim(unit, log, tonumber(args[at + 2]), args[at + 3] == '1')
    elseif kind == 'D' then
      drop(unit, log)
    elseif kind == 'P' then
      if call('HSET', unit .. ':docs:' .. log, args[at + 2], args[at + 3]) == 1 then
        call('ZADD', unit .. ':keys:' .. log, 0, args[at + 2])
        call('SADD', unit .. ':kinds', log)
      end
    elseif kind == 'X' then
      call('HDEL', unit .. ':docs:' .. log, args[at + 2])
      call('ZREM', unit .. ':keys:' .. log, args[at + 2])
    elseif kind == 'L' then
      local producer, entry, last, born = args[at + 2], args[at + 3], args[at + 4], args[at + 5]
      call('HSET', unit .. ':ledger:' .. log, producer, last .. ' ' .. born .. '\n' .. entry)
      if last == '' then
        call('ZREM', unit .. ':last:' .. log, producer)
      else
        call('ZADD', unit .. ':last:' .. log, last, producer)
      end
    elseif kind == 'F' then
      call('HDEL', unit .. ':ledger:' .. log, args[at + 2])
      call('ZREM', unit .. ':last:' .. log, args[at + 2])
    end
    at = at + 1 + WIDTH[kind]
  end
end

-- commit EPOCH NUMBER WRITE...: the commit of this number of the unit, once, however often it is asked for.
--   OK      it was done now
--   KNOWN   it had been done before. The answer writes as well, so that WAIT waits for what is older, too.
--   FENCED  another owner has claimed the unit; nothing was written
--   LOST    the server doesn't know what it has answered before: epoch and number that it knows
--   GAP, SOURCE  a write breaks the rules; nothing was written
local function commit(keys, args)
  local unit, epoch, number = keys[1], tonumber(args[1]), tonumber(args[2])
  check_whole(unit)
  local known = call('HMGET', unit, 'epoch', 'number')
  local known_epoch, known_number = tonumber(known[1] or 0), tonumber(known[2] or 0)
  if known_epoch > epoch then
    local past = call('HGET', unit, 'past:' .. text(epoch))
    if past and tonumber(past) >= number then
      call('HINCRBY', unit, 'asked', 1)
      return {'KNOWN'}
    end
    return {'FENCED', text(known_epoch)}
  end
  if known_epoch < epoch or known_number < number - 1 then
    return {'LOST', text(known_epoch), text(known_number)}
  end
  if known_number >= number then
    call('HINCRBY', unit, 'asked', 1)
    return {'KNOWN'}
  end
  local refused = refusal(unit, args)
  if refused then return refused end
  apply(unit, args)
  -- Last: a function that was ended in the middle, by whatever fault, must not count as done.
  call('HSET', unit, 'number', text(number))
  return {'OK'}
end

-- claim CLAIMANT: become the owner. Returns the new epoch; the same one, if the claim is asked for again.
local function claim(keys, args)
  local unit = keys[1]
  check_whole(unit)
  local known = call('HMGET', unit, 'epoch', 'number', 'claimant')
  local epoch = tonumber(known[1] or 0)
  if known[3] == args[1] then
    call('HINCRBY', unit, 'asked', 1)
    return text(epoch)
  end
  if epoch > 0 then
    call('HSET', unit, 'past:' .. text(epoch), known[2] or '0')
    call('HDEL', unit, 'past:' .. text(epoch - MOST_PAST))
  end
  call('HSET', unit, 'epoch', text(epoch + 1), 'number', '0', 'claimant', args[1])
  return text(epoch + 1)
end

-- read LOG OFFSET MOST_BYTES: entry, data, entry, data. Data is false where it is missing.
local function read(keys, args)
  local unit, log, offset, room = keys[1], args[1], args[2], tonumber(args[3])
  local found, at, STEP = {}, 0, 64
  while true do
    local entries = call('ZRANGEBYSCORE', unit .. ':log:' .. log, '(' .. offset, '+inf', 'LIMIT', at, STEP)
    for _, each in ipairs(entries) do
      local entry = parsed(each)
      room = room - entry.size
      if room < 0 and #found > 0 then return found end
      found[#found + 1] = each
      found[#found + 1] = call('GET', unit .. ':data:' .. entry.batch)
    end
    if #entries < STEP then return found end
    at = at + STEP
  end
end

-- seek LOG TIME: the first offset of the oldest batch at or after the time.
local function seek(keys, args)
  local unit, log, time = keys[1], args[1], tonumber(args[2])
  local entries = unit .. ':log:' .. log
  local low, high = 0, call('ZCARD', entries)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if parsed(call('ZRANGE', entries, middle, middle)[1]).time < time then low = middle + 1 else high = middle end
  end
  local found = call('ZRANGE', entries, low, low)[1]
  if found then return text(parsed(found).first) end
  local bounds = bounds_of(unit, log)
  return bounds and text(bounds.last) or '0'
end

-- documents KIND PREFIX: key, value, key, value, in the order of the keys.
local function documents(keys, args)
  local unit, kind, prefix = keys[1], args[1], args[2]
  local least, most = '-', '+'
  if prefix ~= '' then least, most = '[' .. prefix, '(' .. prefix .. '\255' end
  local found = {}
  for _, key in ipairs(call('ZRANGEBYLEX', unit .. ':keys:' .. kind, least, most)) do
    found[#found + 1] = key
    found[#found + 1] = call('HGET', unit .. ':docs:' .. kind, key)
  end
  return found
end

redis.register_function{function_name = 'lb1_commit', callback = commit}
-- The same for commits without batches: they free room, and go through where there is none.
redis.register_function{function_name = 'lb1_free', callback = commit, flags = {'allow-oom'}}
redis.register_function{function_name = 'lb1_claim', callback = claim, flags = {'allow-oom'}}
redis.register_function{function_name = 'lb1_read', callback = read, flags = {'no-writes'}}
redis.register_function{function_name = 'lb1_seek', callback = seek, flags = {'no-writes'}}
redis.register_function{function_name = 'lb1_documents', callback = documents, flags = {'no-writes'}}
