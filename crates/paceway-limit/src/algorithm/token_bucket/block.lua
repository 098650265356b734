-- Blocks: permits of one bucket that a gateway takes together and uses for requests that come later. Twin of
-- token_bucket/block.rs, which explains them.

local gates = require 'gate'
local M = {}

local floor, max = math.floor, math.max
local LEAST_BURST, TOKEN_BUCKET = 4, 84

-- Where the block of so many requests begins, in ticks from now; nil if the limiter gives none.
function M.start(want, requests, reach, jump)
  local state, open = want.state, want.state.open
  local rule, permits = open.rule, requests * want.cost
  if state.algorithm.kind ~= TOKEN_BUCKET or not want.enforce or open.gate and not gates.is_idle(open.gate) then return nil end
  if open.credit and open.credit.moved + open.credit.free > 0 then return nil end
  if requests < 2 or rule.most < LEAST_BURST or permits > rule.most then return nil end
  local full, start = rule.most * rule.per, open.tail
  if start < reach * rule.den then start = max(start, jump * rule.den) end
  return start + permits * rule.per <= full - floor(full / 4) and start or nil
end

return M
