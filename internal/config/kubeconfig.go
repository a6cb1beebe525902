// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// kubeconfig returns the configuration with which the manager reaches the hub's API server. It never uses a proxy from
// the environment: such a proxy is for external destinations, such as release channels, and must not see the manager's
// token.
func kubeconfig(userAgent string) (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // no client-side limit: the API server's priority and fairness decides
	if cfg.Proxy == nil {
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	return cfg, nil
}
