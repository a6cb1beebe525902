// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/drover-dev/drover/agent/direct"
	"github.com/drover-dev/drover/internal/memory"
)

// RunDirect reviews tokens for the node's API server until ctx ends. It does not communicate with the hub. It can
// read only two Secrets: the Secret that the hub delivers for direct access, and the Secret with the CA that the
// agent has created.
func RunDirect(ctx context.Context, o Options) error {
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.serveLevel(ctx) })
	running.Go(func() { memory.ReturnWhenCalm(ctx) })
	direct.New(direct.Options{
		APIServer: true, Secrets: a.client.Secrets(o.Environ.Namespace), Listen: o.Environ.DirectListen, Now: time.Now,
		Log: o.Log.WithName("direct"),
	}).Run(ctx)
	return nil
}
