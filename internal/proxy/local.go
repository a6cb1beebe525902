// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/request"
)

// localAPI connects to the hub's own API server without using the manager's credentials.
type localAPI struct {
	base    *url.URL
	plain   http.RoundTripper // for requests
	upgrade http.RoundTripper // for upgrades, because HTTP/2 does not support them
}

// newLocalAPI takes the API server's address and CA from a configuration, but no credentials. As a result, these
// transports can never send the manager's credentials.
func newLocalAPI(config *rest.Config) (*localAPI, error) {
	anonymous := rest.AnonymousClientConfig(config)
	anonymous.UserAgent, anonymous.DisableCompression = "", true
	anonymous.RateLimiter, anonymous.QPS, anonymous.Burst, anonymous.Timeout = nil, 0, 0, 0
	base, _, err := rest.DefaultServerUrlFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("find the hub's API server: %w", err)
	}
	plain, err := rest.TransportFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("make transport to the hub's API server: %w", err)
	}
	onlyHTTP1 := rest.CopyConfig(anonymous)
	onlyHTTP1.NextProtos = []string{"http/1.1"}
	upgrade, err := rest.TransportFor(onlyHTTP1)
	if err != nil {
		return nil, fmt.Errorf("make transport to the hub's API server: %w", err)
	}
	return &localAPI{base: base, plain: plain, upgrade: upgrade}, nil
}

// route completes a call to the hub itself with the caller's token. The API server checks both the token and the
// impersonation.
func (h *localAPI) route(r *http.Request, c *call) error {
	token, err := identity.Token(r)
	if err != nil {
		return err
	}
	c.base, c.transport = h.base, h.plain
	if request.IsUpgrade(r.Header) {
		c.transport = h.upgrade
	}
	c.header = http.Header{"Authorization": {"Bearer " + token}}
	return nil
}
