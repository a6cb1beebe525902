// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// row is a line of the table. Peers were measured on a different machine with two cores, using the same versions.
type row struct {
	what            string
	floor, measured string // empty: not measured
	ratio           string // of the two, which other machines may be compared by; empty if there is no floor
	peers, goal     string
	// met reports whether the goal has been met. It is valid only if there is a goal and the row was measured.
	met bool
}

// outcome returns the last column.
func (r row) outcome() string {
	switch {
	case r.goal == "" || r.measured == "":
		return ""
	case r.met:
		return "ok"
	}
	return "missed"
}

// cell formats values. It returns an empty cell if any of them was not measured.
func cell(format string, values ...float64) string {
	args := make([]any, len(values))
	for i, v := range values {
		if math.IsNaN(v) {
			return ""
		}
		args[i] = v
	}
	return fmt.Sprintf(format, args...)
}

// rows returns the table.
func rows(r *results, e extent) []row {
	manager := r.median("cpu-hub-manager") / r.median("cpu-direct-apiserver")
	list := []row{
		requestRow(r, "get-1", "GET of a ConfigMap, one at a time", "Rancher 9.29 / 20.68 ms, 102/s"),
		copiedRow(r, "get-1"),
		requestRow(r, "get-16", "the same, 16 concurrent", "Rancher 92.5 / 339 ms, 144/s"),
		copiedRow(r, "get-16"),
		requestRow(r, "list-1", "LIST of namespaces, one at a time", "Rancher 9.42 / 23.83 ms, 101/s"),
		copiedRow(r, "list-1"),
		requestRow(r, "list-16", "the same, 16 concurrent", "Rancher 88.7 / 244 ms, 161/s"),
		copiedRow(r, "list-16"),
		{
			what:  fmt.Sprintf("write → watch event, p50 / p99, n=%d", r.count("watch-hub")),
			floor: quantiles(r, "watch-direct"), measured: quantiles(r, "watch-hub"), ratio: cell("%.2f × (p50)", r.median("watch-hub")/r.median("watch-direct")),
		},
		{
			what:     "CPU for each GET, 16 at once: client + API server + manager + agent",
			floor:    cell("%.2f + %.2f ms", r.median("cpu-direct-client"), r.median("cpu-direct-apiserver")),
			measured: cell("%.2f + %.2f + %.2f + %.2f ms", r.median("cpu-hub-client"), r.median("cpu-hub-apiserver"), r.median("cpu-hub-manager"), r.median("cpu-hub-agent")),
			ratio:    cell("%.2f × (manager beside the direct API server)", manager),
			goal:     "manager ≤ 0.45 × the API server's for the same sent directly", met: manager <= 0.45,
		},
	}
	list = append(list, lifeRows(r, e)...)
	list = append(list, managerRows(r, e)...)
	return append(list, agentRows(r, e)...)
}

func quantiles(r *results, name string) string {
	return cell("%.2f / %.2f ms", r.median(name), r.quantile(name, 0.99))
}

// requestRow compares requests on both paths. The goals for GET also apply to LIST.
func requestRow(r *results, key, what, peers string) row {
	direct, hub := key+"-direct", key+"-hub"
	out := row{
		what: fmt.Sprintf("%s, p50 / p99, rate, n=%d", what, r.count(hub)), peers: peers,
		floor:    cell("%.2f / %.2f ms, %.0f/s", r.median(direct), r.quantile(direct, 0.99), r.median(direct+"-rate")),
		measured: cell("%.2f / %.2f ms, %.0f/s", r.median(hub), r.quantile(hub, 0.99), r.median(hub+"-rate")),
		ratio:    cell("%.2f × (p50)", r.median(hub)/r.median(direct)),
		goal:     "p50 ≤ 1.6 × direct",
		met:      r.median(hub) <= 1.6*r.median(direct),
	}
	if key == "get-16" || key == "list-16" {
		rate := r.median(hub+"-rate") / r.median(direct+"-rate")
		out.ratio, out.goal, out.met = cell("%.0f %% (rate)", 100*rate), "≥ 55 % of the direct rate", rate >= 0.55
	}
	return out
}

// copiedRow returns the cost of the same requests through two processes that only copy bytes.
func copiedRow(r *results, key string) row {
	direct, copied := key+"-direct", key+"-copied"
	return row{
		what:     "… through two processes that only copy bytes",
		measured: cell("%.2f / %.2f ms, %.0f/s", r.median(copied), r.quantile(copied, 0.99), r.median(copied+"-rate")),
		ratio:    cell("%.2f × (p50), %.0f %% (rate)", r.median(copied)/r.median(direct), 100*r.median(copied+"-rate")/r.median(direct+"-rate")),
	}
}

// lifeRows returns the rows for starts, stops and losses.
func lifeRows(r *results, e extent) []row {
	together := r.median("together") * 1000 / r.median("join")
	return []row{
		{
			what:     fmt.Sprintf("agent start → Ready, first join, median (worst of %d)", r.count("join")),
			measured: cell("%.0f (%.0f) ms", r.median("join"), r.worst("join")), peers: "OCM 1,710 ms", goal: "< 1,000 ms", met: r.median("join") < 1000,
		},
		{
			what:     fmt.Sprintf("agent start → Ready, again, median (worst of %d)", r.count("restart")),
			measured: cell("%.0f (%.0f) ms", r.median("restart"), r.worst("restart")), goal: "< 1,000 ms", met: r.median("restart") < 1000,
		},
		{
			what:     fmt.Sprintf("%d agents started at the same time → the last is Ready, first join", e.together),
			floor:    cell("%.2f s (one agent)", r.median("join")/1000),
			measured: cell("%.2f s", r.median("together")), peers: "OCM 18.1 s",
			ratio: cell("%.1f ×", together), goal: "≤ 10 × one agent", met: together <= 10,
		},
		{
			what:     "CPU of each of these agents until the last is Ready: hub's API server + member's + manager + agent",
			measured: cell("%.0f + %.0f + %.0f + %.0f ms", r.median("join-hub-cpu"), r.median("join-member-cpu"), r.median("join-manager-cpu"), r.median("join-agent-cpu")),
		},
		{
			what:     "writes of each of these agents until the last is Ready: hub; member",
			measured: cell("%.1f; %.1f", r.median("join-hub-writes"), r.median("join-member-writes")),
		},
		{
			what:     fmt.Sprintf("agent killed → shown as disconnected, median (worst of %d)", r.count("killed")),
			measured: cell("%.0f (%.0f) ms", r.median("killed"), r.worst("killed")), peers: "Rancher 6,700 ms, OCM 259,300 ms",
			goal: "< 2,000 ms, each", met: r.worst("killed") < 2000,
		},
		{
			what:     "agent hangs → shown as disconnected",
			measured: cell("%.1f s", r.median("hung")), goal: "< 30 s", met: r.median("hung") < 30,
		},
		{
			what:     fmt.Sprintf("manager killed, started again → the member answers through it, median (worst of %d)", r.count("manager-back-one")),
			measured: cell("%.2f (%.2f) s", r.median("manager-back-one"), r.worst("manager-back-one")), peers: "Rancher 7.6 s to /ping",
		},
		{
			what:     fmt.Sprintf("the same with %d members → the last member answers", e.together+1),
			measured: cell("%.2f (%.2f) s", r.median("manager-back-many"), r.worst("manager-back-many")),
		},
		{
			what:     fmt.Sprintf("deletion of an unreachable member → gone, worst of %d", r.count("removal")),
			measured: cell("%.1f s", r.worst("removal")), goal: "< 30 s", met: r.worst("removal") < 30,
		},
		{
			what:  fmt.Sprintf("writes on the hub per minute, without leases, idle with %d members", e.together+1),
			floor: cell("%.1f", r.median("writes-alone")), measured: cell("%.1f", r.median("writes")),
			peers: "Rancher 186, OCM 1.6 per cluster", goal: "0", met: r.median("writes") == 0,
		},
		{
			what:  "lease writes on the hub per minute",
			floor: cell("%.1f", r.median("leases-alone")), measured: cell("%.1f", r.median("leases")), peers: "OCM 13",
		},
	}
}

func managerRows(r *results, e extent) []row {
	each := r.perMember("rested-rss", e.together) * 1024
	goroutines := r.perMember("goroutines", e.together)
	return []row{
		managerRow(r, "manager's resident memory after the start, one idle member", "manager-one-fresh", "Rancher 435 MiB, OCM 263 MiB", "< 60 MiB"),
		managerRow(r, fmt.Sprintf("the same right after %d requests, with their garbage", e.warmUp), "manager-one-worked", "", ""),
		managerRow(r, fmt.Sprintf("the same, %s later", e.settle), "manager-one-rested", "", "< 60 MiB"),
		managerRow(r, fmt.Sprintf("manager's resident memory after the start, %d idle members", e.together+1),
			"manager-many-fresh", "", ""),
		managerRow(r, fmt.Sprintf("the same right after %d requests, with their garbage", e.warmUp), "manager-many-worked", "", ""),
		managerRow(r, fmt.Sprintf("the same, %s later", e.settle), "manager-many-rested", "", ""),
		{
			what: "manager, resident memory for each idle member, after the requests and a rest", peers: "Rancher 23 MiB, KubeFleet 230 kB",
			measured: cell("%.0f KiB (anonymous %.0f)", each, r.perMember("rested-anon", e.together)*1024), goal: "< 100 kB", met: each*1.024 < 100,
		},
		{
			what:     "manager, for each idle member: goroutines",
			measured: cell("%.1f", goroutines), goal: "≤ 3", met: goroutines <= 3.05,
		},
		{
			what:     fmt.Sprintf("manager, goroutines, 1 → %d members", e.together+1),
			measured: cell("%.0f → %.0f", r.median("manager-one-goroutines"), r.median("manager-many-goroutines")), peers: "Rancher 7,524",
		},
		{
			what:     fmt.Sprintf("manager, CPU when idle, 1 → %d members, of one core", e.together+1),
			measured: cell("%.2f → %.2f %%", r.median("manager-one-cpu"), r.median("manager-many-cpu")), peers: "Rancher 2.6 %, OCM 0.49 %",
		},
	}
}

// managerRow returns the row for the manager's memory, which is the median of a few samples.
func managerRow(r *results, what, key, peers, goal string) row {
	rss := r.median(key + "-rss")
	return row{
		what: what, peers: peers, goal: goal, met: rss < 60,
		measured: cell("%.1f MiB (anonymous %.1f; worst of %.0f %.1f)", rss, r.median(key+"-anon"), float64(r.count(key+"-rss")), r.worst(key+"-rss")),
	}
}

func agentRows(r *results, e extent) []row {
	list := []row{
		{
			what:     fmt.Sprintf("agent's resident memory, idle, median (worst of %d)", r.count("agent-rss")),
			measured: cell("%.1f (%.1f) MiB (anonymous %.1f)", r.median("agent-rss"), r.worst("agent-rss"), r.median("agent-anon")),
			peers:    "Rancher 364 MiB, OCM 96 MiB, KubeFleet 33 MB", goal: "≤ 22 MiB", met: r.median("agent-rss") <= 22,
		},
		{what: "agent, CPU when idle, median, of one core", measured: cell("%.2f %%", r.median("agent-cpu")), peers: "Rancher 0.8 %, OCM 0.23 %"},
		{what: "agent, goroutines when idle", measured: cell("%.0f", r.median("agent-goroutines")), peers: "Rancher 3,258"},
	}
	if e.nodes == 0 {
		return list
	}
	in := fmt.Sprintf("with %d nodes and %d pods", e.nodes, e.pods)
	return append(list,
		row{
			what:     "agent's resident memory " + in,
			measured: cell("%.1f MiB (anonymous %.1f, peak %.1f)", r.median("large-rss"), r.median("large-anon"), r.median("large-peak")),
			goal:     "< 60 MiB", met: r.median("large-rss") < 60,
		},
		row{what: "agent start → Ready, again, " + in, measured: cell("%.0f ms", r.median("large-start"))},
	)
}
