// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// skewTimeout is the timeout for requesting the hub's time.
const skewTimeout = 5 * time.Second

// tokenOf returns the join token in a registration Secret. It removes a trailing line break, because editors and echo
// often add one.
func tokenOf(secret *corev1.Secret) string {
	return strings.TrimSpace(string(secret.Data[protocol.KeyToken]))
}

// clockSkew requests the time from a hub that has responded with 401. Connect tokens are valid for only a minute, so a
// wrong clock can be the cause of this response. If the clocks differ too much, clockSkew returns advice.
func clockSkew(ctx context.Context, hub Endpoint, connectURL string) (string, bool) {
	u, err := url.Parse(connectURL)
	if err != nil {
		return "", false
	}
	u.Scheme = "https"
	u.Path = strings.TrimSuffix(u.Path, protocol.PathConnect) + protocol.PathCACerts
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), nil)
	if err != nil {
		return "", false
	}
	resp, err := hub.client(skewTimeout).Do(req)
	if err != nil {
		return "", false
	}
	_ = resp.Body.Close() // the response to a HEAD has no body
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return "", false
	}
	return describeSkew(time.Now(), date)
}

// describeSkew describes the difference between the clocks of the agent and the hub, if the difference is too large.
func describeSkew(ours, hubs time.Time) (string, bool) {
	skew := ours.Sub(hubs)
	if skew.Abs() <= protocol.ClockSkew {
		return "", false
	}
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the agent's clock is %s %s the hub's: set the clocks of the agent's node and the hub",
		skew.Abs().Round(time.Minute), direction), true // in minutes, so that the message rarely changes
}
