// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// returnTime returns how long an agent that lost the hub may need to reconnect after the manager started. It consists
// of the longest wait of an agent and the time in which the hub admits all agents. Until then, a wave does not continue
// without an agent, and no Plan starts if the agent may have newer information about it.
func returnTime(clusters int) time.Duration {
	return protocol.LongestReturn + members.AdmissionTime(clusters)
}

// since returns a function that returns the given time.
func since(at time.Time) func() time.Time { return func() time.Time { return at } }

// firstConnected returns a function that returns when this manager learned of the first connected agent, on any
// replica. The function returns zero before that.
func firstConnected(states *members.States, notices *members.Notices) func() time.Time {
	var first atomic.Pointer[time.Time]
	look := func(member types.NamespacedName) {
		if first.Load() == nil && states.State(member).Connected() {
			first.CompareAndSwap(nil, new(time.Now()))
		}
	}
	notices.OnChange(look)
	notices.OnHostChange(look)
	return func() time.Time {
		if at := first.Load(); at != nil {
			return *at
		}
		return time.Time{}
	}
}

// settled returns a function that reports whether agents have had time to reconnect since the given time. The function
// reports false while that time is zero.
func (s shared) settled(from func() time.Time) func() bool {
	var returned atomic.Bool // once true, it stays true
	return func() bool {
		if at := from(); !returned.Load() && !at.IsZero() && time.Since(at) > returnTime(0) {
			clusters, err := s.clusterNames(context.Background()) // from the cache
			hosts, errHosts := s.hostNames(context.Background())
			returned.Store(errors.Join(err, errHosts) == nil && time.Since(at) > returnTime(len(clusters)+len(hosts)))
		}
		return returned.Load() && (s.Synced == nil || s.Synced())
	}
}
