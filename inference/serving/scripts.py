"""The broker's atomic steps, in Lua: submit, cancel, claim, publish, release, take over, the next epoch.

Knows: the shape of the streams. Must not know: what is in a message (bodies are opaque), who calls.

A request's log `out:{id}` is a stream with explicit ids `epoch-seq`, so that the server itself refuses an entry that is
not newer than the last:
    0-1     entry   <id in `requests`>          submitted, claimed by nobody yet
    E-0     claim   <token> engine <consumer>   claim number E; the token names this claim and no other
                    at <Unix seconds>
    E-seq   delta   <body>                      one per text-bearing token
    E-seq   finish  <body>                      the last entry
    E-9e15  release <token>                     given back by a worker that stops; does not count as an attempt
Scripts reach keys they derive from arguments, so one server (not a cluster) holds all keys.
"""

GROUP = "engines"
RELEASE_SEQ = "9000000000000000"

_LAST = """
local function last_of(key) return redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1] end
local function epoch_of(entry) return tonumber(string.match(entry[1], '^(%d+)-')) end
"""

# KEYS out, requests. ARGV id, body. Returns 1, or 0 where the log exists already (submitting twice is submitting once).
SUBMIT = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local entry = redis.call('XADD', KEYS[2], '*', 'id', ARGV[1], 'body', ARGV[2])
redis.call('XADD', KEYS[1], '0-1', 'entry', entry)
return 1
"""

# KEYS out, requests, feed, control, cancelled. ARGV id, finish body, feed length, seconds to keep.
# A request that nobody has claimed is finished here and now; else its engine is told, and a flag stays for the next.
CANCEL = (
    _LAST
    + f"""
local last = last_of(KEYS[1])
if not last then return 'missing' end
if last[2][1] == 'finish' then return 'finished' end
if last[2][1] == 'entry' then
  redis.call('XADD', KEYS[1], '0-2', 'finish', ARGV[2])
  redis.call('XACK', KEYS[2], '{GROUP}', last[2][2])
  redis.call('XDEL', KEYS[2], last[2][2])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'events', '[' .. ARGV[2] .. ']')
  return 'finished'
end
redis.call('SET', KEYS[5], '1', 'EX', 86400)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'cancel', ARGV[1])
return 'asked'
"""
)

# KEYS out, cancelled. ARGV token, consumer.
# Returns {'gone'}, {'finished'} or {'claimed', epoch, attempts, cancelled, log}.
CLAIM = (
    _LAST
    + """
local log = redis.call('XRANGE', KEYS[1], '-', '+')
local last = log[#log]
if not last then return {'gone'} end
if last[2][1] == 'finish' then return {'finished'} end
local epoch, attempts = epoch_of(last) + 1, 1
for _, entry in ipairs(log) do
  if entry[2][1] == 'claim' then attempts = attempts + 1 end
  if entry[2][1] == 'release' then attempts = attempts - 1 end
end
local time = redis.call('TIME')
local at = string.format('%d.%06d', time[1], time[2])
redis.call('XADD', KEYS[1], epoch .. '-0', 'claim', ARGV[1], 'engine', ARGV[2], 'at', at)
return {'claimed', epoch, attempts, redis.call('EXISTS', KEYS[2]), log}
"""
)

# KEYS feed, requests, prefix of logs, prefix of cancel flags, the engine's totals. ARGV feed length, seconds to keep,
# counts, then six an entry: kind, request id, epoch, token, seq, body. Returns the tokens whose claim holds no more.
# An entry that is there already under our own claim was written before a connection broke: not refused, not fed again.
# What is written is counted in the same step, so that no count ever differs from the logs. An entry brings one token of
# an answer, or what `counts` (a JSON object) has under its place, from 0: tokens of the prompt, and of the answer.
PUBLISH = (
    _LAST
    + f"""
local refused, events = {{}}, {{}}
local prompt_tokens, generation_tokens = 0, 0
local counts = cjson.decode(ARGV[3])
for i = 4, #ARGV, 6 do
  local kind, id, epoch, token, seq, body = unpack(ARGV, i, i + 5)
  local out = KEYS[3] .. id
  local marker = redis.call('XRANGE', out, epoch .. '-0', epoch .. '-0')[1]
  if not marker or marker[2][2] ~= token then
    refused[#refused + 1] = token
  else
    local added = redis.pcall('XADD', out, 'NOMKSTREAM', epoch .. '-' .. seq, kind, body)
    if type(added) == 'table' and added.err then
      if epoch_of(last_of(out)) ~= tonumber(epoch) then refused[#refused + 1] = token end
    else
      events[#events + 1] = body
      local pair = counts[tostring((i - 4) / 6)] or {{0, 1}}
      prompt_tokens, generation_tokens = prompt_tokens + pair[1], generation_tokens + pair[2]
      if kind == 'finish' then
        local entry = redis.call('XRANGE', out, '0-1', '0-1')[1]
        if entry then
          redis.call('XACK', KEYS[2], '{GROUP}', entry[2][2])
          redis.call('XDEL', KEYS[2], entry[2][2])
        end
        redis.call('EXPIRE', out, ARGV[2])
        redis.call('DEL', KEYS[4] .. id)
      end
    end
  end
end
if #events > 0 then
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'events', '[' .. table.concat(events, ',') .. ']')
end
if prompt_tokens > 0 then redis.call('HINCRBYFLOAT', KEYS[5], 'prompt_tokens_total', prompt_tokens) end
if generation_tokens > 0 then redis.call('HINCRBYFLOAT', KEYS[5], 'generation_tokens_total', generation_tokens) end
return refused
"""
)

# KEYS out. ARGV epoch, token.
RELEASE = f"""
local marker = redis.call('XRANGE', KEYS[1], ARGV[1] .. '-0', ARGV[1] .. '-0')[1]
if not marker or marker[2][2] ~= ARGV[2] then return 0 end
local added = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', ARGV[1] .. '-{RELEASE_SEQ}', 'release', ARGV[2])
return (type(added) == 'table' and added.err) and 0 or 1
"""

# KEYS requests, prefix of heartbeats. ARGV our consumer name, most entries. Returns entries now pending for us that
# belonged to consumers without a heartbeat. Check and change are one step, so two workers never take the same entry.
TAKE_OVER = f"""
local taken = {{}}
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], '{GROUP}')) do
  local name, pending = consumer[2], consumer[4]
  if name ~= ARGV[1] and redis.call('EXISTS', KEYS[2] .. name) == 0 then
    if pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], '{GROUP}', name)
    else
      local room = tonumber(ARGV[2]) - #taken
      local found = room > 0 and redis.call('XPENDING', KEYS[1], '{GROUP}', '-', '+', room, name) or {{}}
      for _, entry in ipairs(found) do
        for _, claimed in ipairs(redis.call('XCLAIM', KEYS[1], '{GROUP}', ARGV[1], 0, entry[1])) do
          taken[#taken + 1] = claimed
        end
      end
    end
  end
end
return taken
"""

# KEYS epoch. ARGV the least that it may be, seconds to keep. Returns an engine's next epoch: more than any before.
NEXT_EPOCH = """
local epoch = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', epoch), 'EX', ARGV[2])
return epoch
"""
