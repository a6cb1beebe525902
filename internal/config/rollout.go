// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// maxWaves is the maximum number of waves, the same as in a Plan.
const maxWaves = 16

// Rollout specifies how a new image or version reaches the agents. Its fields have the same meaning as in a Plan. A
// change to a Cluster's spec.agent takes effect without a rollout.
type Rollout struct {
	// Paused prevents further agents from being upgraded. Default: false.
	Paused bool `json:"paused,omitempty"`
	// MaxConcurrentClusters is the maximum number of agents that are upgraded at the same time. It is a number or a
	// percentage of all agents (such as "10%", rounded up). Default: 10%.
	MaxConcurrentClusters *intstr.IntOrString `json:"maxConcurrentClusters,omitempty"`
	// MaxFailedClusters is the number of agents that may fail. If more agents fail, the rollout stops. It is a number
	// or a percentage (rounded down). The limit applies to each workspace separately, so a workspace that exceeds it
	// does not hold back other workspaces. The limit also applies to all Clusters combined, not counting the workspace
	// with the most failures. Default: 1%.
	MaxFailedClusters *intstr.IntOrString `json:"maxFailedClusters,omitempty"`
	// Waves start one after another. Clusters that belong to none of the waves form the last wave. By default, there are
	// three waves, with a pause of 10 minutes between waves. The first wave contains 1% of all Clusters. The second wave
	// contains 10% of the remaining Clusters, and the last wave contains the rest. If the list is empty, all Clusters form
	// a single wave.
	Waves []Wave `json:"waves"`
	// Window is the time window in which agents may start an upgrade. Default: always open.
	Window *v1.TimeWindow `json:"window,omitempty"`
}

// Wave is a group of Clusters whose agents may be upgraded at the same time.
type Wave struct {
	// Name is the name of the wave.
	Name string `json:"name"`
	// ClusterSelector selects Clusters by their labels, in all workspaces. Default: all Clusters that do not belong to
	// an earlier wave.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Share is the percentage of the selected Clusters that belong to the wave, rounded up. Default: all.
	Share int `json:"share,omitempty"`
	// Soak is how long to wait after the wave is complete before the next wave starts. Default: 0s.
	Soak metav1.Duration `json:"soak,omitempty"`
}

func (r *Rollout) setDefaults() {
	concurrent, failed := intstr.FromString("10%"), intstr.FromString("1%")
	setDefault(&r.MaxConcurrentClusters, &concurrent)
	setDefault(&r.MaxFailedClusters, &failed)
	if r.Waves == nil {
		soak := metav1.Duration{Duration: 10 * time.Minute}
		r.Waves = []Wave{{Name: "first", Share: 1, Soak: soak}, {Name: "tenth", Share: 10, Soak: soak}}
	}
}

func (r *Rollout) validate(add func(field, format string, args ...any)) {
	for field, value := range map[string]*intstr.IntOrString{"maxConcurrentClusters": r.MaxConcurrentClusters,
		"maxFailedClusters": r.MaxFailedClusters} {
		if n, err := intstr.GetScaledValueFromIntOrPercent(value, 100, true); err != nil || n < 0 ||
			value.Type == intstr.String && n > 100 {
			add("agent.rollout."+field, "want a number, or a share such as 10%%")
		}
	}
	if len(r.Waves) > maxWaves {
		add("agent.rollout.waves", "want at most %d", maxWaves)
	}
	names := map[string]bool{}
	for i, w := range r.Waves {
		field := fmt.Sprintf("agent.rollout.waves[%d]", i)
		if w.Name == "" || names[w.Name] {
			add(field, "want a name that no other wave has")
		}
		names[w.Name] = true
		if w.Share < 0 || w.Share > 100 || w.Soak.Duration < 0 {
			add(field, "want 1 ≤ share ≤ 100, or none, and 0s ≤ soak")
		}
		if _, err := metav1.LabelSelectorAsSelector(w.ClusterSelector); err != nil {
			add(field+".clusterSelector", "%w", err)
		}
	}
	if _, err := rollout.NewWindow(r.Window); err != nil {
		add("agent.rollout.window", "%w", err)
	}
}

// Pace returns the limits of the rollout for the given number of Clusters.
func (r *Rollout) Pace(clusters int) rollout.Pace {
	scaled := func(value *intstr.IntOrString, up bool) int {
		n, _ := intstr.GetScaledValueFromIntOrPercent(value, clusters, up) // validate has already checked the value
		return n
	}
	p := rollout.Pace{Paused: r.Paused, Window: r.Window, MaxConcurrent: max(scaled(r.MaxConcurrentClusters, true), 1),
		MaxFailed: scaled(r.MaxFailedClusters, false)}
	for _, w := range r.Waves {
		p.Waves = append(p.Waves, rollout.Wave{Name: w.Name, Selector: w.ClusterSelector, Share: w.Share,
			Soak: w.Soak.Duration})
	}
	return p
}
