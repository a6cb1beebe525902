// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// versionInterval is how often the version is read. An upgrade mostly shows earlier, by the API server's going away and coming back.
const versionInterval = time.Minute

// probe asks the API server for its health and version.
type probe struct {
	client    rest.Interface
	onHealth  func(healthState)
	onVersion func(string, error)
}

// run asks until ctx ends, at once at first.
func (p *probe) run(ctx context.Context) {
	var v healthState
	var versionAt time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		before := v
		again := v.observe(p.readyz(ctx), time.Now())
		if ctx.Err() != nil {
			return
		}
		p.onHealth(v)
		if back := !before.health.Healthy && v.health.Healthy; back || time.Since(versionAt) >= versionInterval {
			if err := p.version(ctx); err == nil {
				versionAt = time.Now()
			}
		}
		timer.Reset(again)
	}
}

func (p *probe) readyz(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	code := 0
	body, err := p.client.Get().AbsPath("/readyz").MaxRetries(0).SetHeader("Accept", "*/*").Do(ctx).StatusCode(&code).Raw()
	return interpret(ctx, code, body, err)
}

func (p *probe) version(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	raw, err := p.client.Get().AbsPath("/version").MaxRetries(0).SetHeader("Accept", "application/json").DoRaw(ctx)
	var info version.Info
	if err == nil {
		err = json.Unmarshal(raw, &info)
	}
	if err != nil {
		err = fmt.Errorf("read version of the API server: %w", err)
	}
	p.onVersion(info.GitVersion, err)
	return err
}
