// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"strings"
	"time"
)

// leftAgain is how often an agent that only reads looks whether a person has removed what was delivered before.
const leftAgain = 30 * time.Second

// maxLeft is how many sets it names.
const maxLeft = 16

// Left names the sets that an agent that only reads finds from before, as labels of their objects have them. Nothing keeps them true, ends them or takes them
// away: that takes rights which this agent has not.
func (a *Applier) Left() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left
}

// lookForLeft looks for what is left until ctx ends.
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
			a.setLeft(left[:min(len(left), maxLeft)])
		} else if ctx.Err() == nil {
			a.options.Log.Info("it is not known what was delivered before", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *Applier) setLeft(left []string) {
	a.mu.Lock()
	same := slices.Equal(a.left, left)
	a.left = left
	a.mu.Unlock()
	if !same && a.options.LeftChanged != nil {
		a.options.LeftChanged()
	}
}
