-- The values of one call. A library keeps its modules from call to call, so `entries.lua` and `epoch.lua` set all of these for each:
--
--   keys           the names of the keys: first the epoch's, then those of states and queues; in a Cluster they share a {hash tag}
--   now      µs    the instant of the call on the store's clock
--   lost_at  µs    the last loss of data, 0 if none is known
--   database       the end of the channel of pauses, such as `:1` in database 1: messages know no databases
--   queues         the queues of the call by the numbers of their first keys (fair/queue.lua); nil until one is opened

return { keys = {}, now = 0, lost_at = 0, database = '', queues = nil }
