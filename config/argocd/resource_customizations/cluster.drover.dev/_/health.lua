-- Health of the objects of cluster.drover.dev, all kinds of which have the conditions Ready and Stalled and status.observedGeneration.
local health = {status = "Progressing", message = "Waiting for the Drover manager"}

local status = obj.status
if status == nil or status.conditions == nil then
  return health
end

local ready, stalled
for _, condition in ipairs(status.conditions) do
  if condition.type == "Ready" then
    ready = condition
  elseif condition.type == "Stalled" then
    stalled = condition
  end
end
if ready == nil then
  return health
end

-- A status of another generation does not describe this one.
if status.observedGeneration ~= obj.metadata.generation then
  if ready.status == "Unknown" then
    health.message = ready.reason .. ": " .. ready.message
  end
  return health
end

health.message = ready.reason .. ": " .. ready.message

-- A user must act.
if stalled ~= nil and stalled.status == "True" then
  health.status = "Degraded"
  health.message = stalled.reason .. ": " .. stalled.message
  return health
end

if ready.status == "True" then
  health.status = "Healthy"
  return health
end

-- A member that was connected and no longer is.
if obj.kind == "Cluster" and (ready.reason == "TunnelLost" or ready.reason == "ApiServerUnhealthy") then
  health.status = "Degraded"
  return health
end

if (obj.kind == "Plan" or obj.kind == "Baseline") and (ready.reason == "Paused" or ready.reason == "AwaitingApproval") then
  health.status = "Suspended"
end

return health
