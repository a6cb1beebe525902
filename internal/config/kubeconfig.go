// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// kubeconfig returns the configuration that the manager uses to reach the hub's API server. It never uses a proxy from
// the environment, because such a proxy is intended for external destinations, such as release channels, and must not
// see the manager's token.
func kubeconfig(userAgent string) (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // no client-side limit, because API priority and fairness applies
	if cfg.Proxy == nil {
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	return cfg, nil
}
