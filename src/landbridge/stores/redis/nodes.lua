-- The table of nodes, inside Redis or Valkey. KEYS[1] is a hash, in the slot of unit 0:
--
--   node:ID       "started expires life\n" and the node's record as JSON; microseconds of this server's clock
--   owner:U       the id of the node that has unit U
--   drained:NAME  the node of this name should have no units
--
-- It is a hint, which decides who claims a unit. Nothing here waits for replicas.

local function call(...) return redis.call(...) end
local function text(number) return string.format('%.0f', number) end

local function clock()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Everything in the hash. Leases that a clock which was set back has made longer are cut, and nodes that are long
-- gone are forgotten.
local function load(key, now, remembered)
  local nodes, owners, drained = {}, {}, {}
  local raw = call('HGETALL', key)
  for at = 1, #raw, 2 do
    local kind, name = raw[at]:match('^(%a+):(.*)$')
    if kind == 'node' then
      local started, expires, life, record = raw[at + 1]:match('^(%S+) (%S+) (%S+)\n(.*)$')
      nodes[name] = {started = tonumber(started), expires = tonumber(expires), life = tonumber(life), record = record}
    elseif kind == 'owner' then
      owners[name] = raw[at + 1]
    elseif kind == 'drained' then
      drained[name] = true
    end
  end
  local known = {nodes = nodes, owners = owners, drained = drained}
  for id, node in pairs(nodes) do
    if node.expires > now + node.life then
      node.expires = now + node.life
      node.changed = true
    elseif node.expires < now - remembered then
      nodes[id] = nil
      call('HDEL', key, 'node:' .. id)
    end
  end
  for id, node in pairs(nodes) do
    if node.changed then
      call('HSET', key, 'node:' .. id,
           text(node.started) .. ' ' .. text(node.expires) .. ' ' .. text(node.life) .. '\n' .. node.record)
    end
  end
  for unit, owner in pairs(owners) do
    if not nodes[owner] then
      owners[unit] = nil
      call('HDEL', key, 'owner:' .. unit)
    end
  end
  return known
end

local function forget(key, known, id)
  known.nodes[id] = nil
  call('HDEL', key, 'node:' .. id)
  for unit, owner in pairs(known.owners) do
    if owner == id then
      known.owners[unit] = nil
      call('HDEL', key, 'owner:' .. unit)
    end
  end
end

local function answer(key, now) return {text(now), call('HGETALL', key)} end

-- beat REMEMBERED ID NAME LIFE RECORD TAKEN UNIT... UNIT...: first the TAKEN units to take, then those to give up.
local function beat(keys, args)
  local key, now = keys[1], clock()
  local id, name, life, record, taken = args[2], args[3], tonumber(args[4]), args[5], tonumber(args[6])
  local known = load(key, now, tonumber(args[1]))
  for other, node in pairs(known.nodes) do
    if other ~= id and cjson.decode(node.record).name == name then
      if node.expires > now then return {'TAKEN', node.record} end
      forget(key, known, other)
    end
  end
  local mine = known.nodes[id]
  local started = mine and mine.started or now
  call('HSET', key, 'node:' .. id, text(started) .. ' ' .. text(now + life) .. ' ' .. text(life) .. '\n' .. record)
  for at = 7 + taken, #args do
    if known.owners[args[at]] == id then
      known.owners[args[at]] = nil
      call('HDEL', key, 'owner:' .. args[at])
    end
  end
  for at = 7, 6 + taken do
    local owner = known.nodes[known.owners[args[at]]]
    if not owner or owner.expires <= now then call('HSET', key, 'owner:' .. args[at], id) end
  end
  return answer(key, now)
end

-- leave REMEMBERED ID
local function leave(keys, args)
  local now = clock()
  forget(keys[1], load(keys[1], now, tonumber(args[1])), args[2])
  return answer(keys[1], now)
end

-- drain REMEMBERED NAME FLAG: FLAG is 1 or 0.
local function drain(keys, args)
  local key, now, name = keys[1], clock(), args[2]
  local known = load(key, now, tonumber(args[1]))
  if args[3] == '0' then
    call('HDEL', key, 'drained:' .. name)
    return answer(key, now)
  end
  for _, node in pairs(known.nodes) do
    if cjson.decode(node.record).name == name then
      call('HSET', key, 'drained:' .. name, '1')
      return answer(key, now)
    end
  end
  return {'UNKNOWN'}
end

-- read REMEMBERED
local function read(keys, args)
  return {text(clock()), call('HGETALL', keys[1])}
end

redis.register_function{function_name = 'lb1_node_beat', callback = beat, flags = {'allow-oom'}}
redis.register_function{function_name = 'lb1_node_leave', callback = leave, flags = {'allow-oom'}}
redis.register_function{function_name = 'lb1_node_drain', callback = drain, flags = {'allow-oom'}}
redis.register_function{function_name = 'lb1_node_read', callback = read, flags = {'no-writes'}}
