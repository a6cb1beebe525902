// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// versionInterval is how often the version is read. An upgrade is usually noticed earlier, because the API server
// becomes unavailable and then available again.
const versionInterval = time.Minute

// probe reads the API server's health and version.
type probe struct {
	client    rest.Interface
	onHealth  func(healthState)
	onVersion func(string, error)
}

// run probes immediately, and then repeatedly until ctx ends.
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
	code, body, err := p.get(ctx, "/readyz")
	return interpret(ctx, code, body, err)
}

// maxChecks is the maximum number of bytes that are read from a /readyz response.
const maxChecks = 64 << 10

// get sends a request and reads the response without client-go. When a failure response contains plain text, as from
// /readyz, client-go returns neither the code nor the body.
func (p *probe) get(ctx context.Context, path string) (code int, body []byte, err error) {
	client := &http.Client{}
	if c, ok := p.client.(*rest.RESTClient); ok && c.Client != nil {
		client = c.Client
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.client.Get().AbsPath(path).URL().String(), nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(resp.Body, maxChecks)); err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, body, nil
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
