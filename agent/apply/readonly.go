// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"strings"
	"time"
)

// leftAgain is the interval at which a read-only agent checks whether an administrator has removed the sets that were
// delivered before the agent became read-only.
const leftAgain = 30 * time.Second

// maxLeft is the maximum number of sets that Left returns.
const maxLeft = 16

// Left returns the labels of the sets that were delivered before the agent became read-only. A read-only agent is
// not allowed to repair or remove the objects in these sets, even after the sets have expired.
func (a *Applier) Left() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left
}

// lookForLeft lists the remaining sets at intervals until ctx is done.
func (a *Applier) lookForLeft(ctx context.Context) {
	tick := time.NewTicker(leftAgain)
	defer tick.Stop()
	for {
		secrets, err := a.options.Secrets.List(ctx, secretType)
		if err == nil {
			var left []string
			for i := range secrets {
				if name, first := strings.CutPrefix(secrets[i].Name, "set."); first && secrets[i].Type == secretType {
					left = append(left, name)
				}
			}
			slices.Sort(left)
			a.replace(&a.left, left[:min(len(left), maxLeft)])
		} else if ctx.Err() == nil {
			a.options.Log.Info("cannot list the sets that were delivered before the agent became read-only", "error",
				err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Unclaimed returns the names of objects that have the label of a set, but that belong to no set and were not applied
// by the agent.
func (a *Applier) Unclaimed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unclaimed
}

func (a *Applier) setUnclaimed(unclaimed []string) { a.replace(&a.unclaimed, unclaimed) }

func (a *Applier) replace(names *[]string, by []string) {
	a.mu.Lock()
	same := slices.Equal(*names, by)
	*names = by
	a.mu.Unlock()
	if !same && a.options.LeftChanged != nil {
		a.options.LeftChanged()
	}
}
