// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// Intervals between health probes of the API server.
const (
	probeInterval = 10 * time.Second
	probeAgain    = time.Second // interval after a first failure; this failure does not count yet
	probeTimeout  = 5 * time.Second
)

// maxMessage is the maximum size of a health message, in bytes.
const maxMessage = 512

// healthState turns the results of probes into a health state that does not flap. The first failure after a success
// counts only if the next probe fails, too.
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

// interpret returns the problem that a response to /readyz shows, or "" if there is none. The message must stay the
// same between probes as long as the cause is the same.
func interpret(ctx context.Context, code int, body []byte, err error) string {
	switch {
	case code == http.StatusOK, code == http.StatusForbidden:
		// A 403 response means that the API server is serving, but does not permit the agent to see more.
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

// cause returns an error message without ports and times, because ports and times differ between probes.
func cause(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err.Error()
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}
