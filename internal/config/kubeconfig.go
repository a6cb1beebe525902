// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// kubeconfig returns the configuration with which the manager reaches the hub's API server. It never uses a proxy of
// the environment: that is for destinations outside, such as release channels, and must not see the manager's token.
func kubeconfig(userAgent string) (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // the API server's priority and fairness decides, not the client
	if cfg.Proxy == nil {
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	return cfg, nil
}
