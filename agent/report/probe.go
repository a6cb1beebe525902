// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// versionInterval is how often the version is read. An upgrade is usually detected earlier, because the API server
// becomes unavailable and then available again.
const versionInterval = time.Minute

// probe reads the API server's health and version.
type probe struct {
	client    rest.Interface
	onHealth  func(healthState)
	onVersion func(string, error)
}

// run sends a probe immediately, and then sends more probes until ctx is done.
func (p *probe) run(ctx context.Context) {
	var v healthState
	var versionAt time.Time
	await.Loop(ctx, nil, func(ctx context.Context) time.Duration {
		before := v
		again := v.observe(p.readyz(ctx), time.Now())
		if ctx.Err() != nil {
			return 0
		}
		p.onHealth(v)
		if back := !before.health.Healthy && v.health.Healthy; back || time.Since(versionAt) >= versionInterval {
			if err := p.version(ctx); err == nil {
				versionAt = time.Now()
			}
		}
		return again
	})
}

func (p *probe) readyz(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	code, body, err := p.get(ctx, "/readyz")
	return interpret(ctx, code, body, err)
}

// maxChecks is the maximum number of bytes that are read from a /readyz response.
const maxChecks = 64 << 10

// get sends a request and reads the response without client-go. If the response is a failure in plain text, for example
// from /readyz, client-go returns neither the code nor the body.
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

// Intervals between health probes of the API server.
const (
	probeInterval = 10 * time.Second
	probeAgain    = time.Second // interval after the first failure, which does not count yet
	probeTimeout  = 5 * time.Second
)

// maxMessage is the maximum size of a health message, in bytes.
const maxMessage = 512

// healthState derives a health state that does not flap from the results of probes. The first failure after a success
// counts only if the next probe fails as well.
type healthState struct {
	health    protocol.Health
	known     bool
	suspected bool
}

// observe records the problem that a probe found, or "" if there is none, and returns the time until the next probe.
func (v *healthState) observe(problem string, now time.Time) (again time.Duration) {
	healthy := problem == ""
	switch {
	case !v.known || healthy && !v.health.Healthy:
		v.known, v.suspected = true, false
		v.health = protocol.Health{Healthy: healthy, Message: problem, Since: now.UTC().Truncate(time.Second)}
	case healthy:
		v.suspected = false
	case v.health.Healthy && !v.suspected:
		v.suspected = true
		return probeAgain
	case v.health.Healthy:
		v.health = protocol.Health{Message: problem, Since: now.UTC().Truncate(time.Second)}
	default:
		v.health.Message = problem
	}
	return probeInterval
}

// interpret returns the problem that a response to /readyz shows, or "" if there is none. The message must not change
// between probes as long as the cause is the same.
func interpret(ctx context.Context, code int, body []byte, err error) string {
	switch {
	case code == http.StatusOK, code == http.StatusForbidden:
		// A 403 response means that the API server is serving, but does not allow the agent to read the checks.
		return ""
	case code == http.StatusUnauthorized:
		return "the API server does not accept the agent's credentials"
	case code != 0:
		if failing := failingChecks(body); failing != "" {
			return protocol.Cut("checks of /readyz fail: "+failing, maxMessage)
		}
		return "/readyz responds with " + http.StatusText(code)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "/readyz does not answer within " + probeTimeout.String()
	case err == nil:
		return "/readyz gives no answer"
	}
	return protocol.Cut("the API server cannot be reached: "+cause(err), maxMessage)
}

// failingChecks returns the names of the checks that /readyz marks with [-].
func failingChecks(body []byte) string {
	var names []string
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// cause returns the message of an error without ports and times, which differ between probes.
func cause(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err.Error()
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}
