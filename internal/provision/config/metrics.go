// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/drover-dev/drover/internal/identity"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// protect serves metrics only to users with the "get" right on the path /metrics. Drover's manager protects its metrics
// in the same way.
func protect(config *rest.Config, client *http.Client) (server.Filter, error) {
	clients, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	audiences := identity.Audiences{Member: func(*http.Request) string { return identity.Local }}
	users := identity.NewAuthenticator(clients.AuthenticationV1().TokenReviews(), audiences)
	access := identity.NewAccess(clients.AuthorizationV1().SubjectAccessReviews())
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return identity.Protect(next, users.Authenticate, access.Metrics), nil
	}, nil
}
