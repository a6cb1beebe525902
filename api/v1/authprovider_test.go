// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// The names of users and groups start with the name of their provider, even if clusters bind such names to rights of
// their own.
func TestNamesOfProvidersThatPrecedeOtherUsersAreRefused(t *testing.T) {
	env := testkit.Shared(t)
	for name, reserved := range map[string]bool{"hub": true, "system": true, "local": true, "kubeadm": true, "eks": true, "okta": false, "eks-corp": false} {
		p := object(
			t, "", "AuthProvider",
			"oidc: {url: https://login.example.com, clientID: drover, clientSecret: {name: okta, key: secret}}",
		)
		p.SetName(name)
		p.SetNamespace("")
		err := env.Client.Create(t.Context(), p, client.DryRunAll)
		if reserved != (err != nil && strings.Contains(err.Error(), "these prefixes are used for other users")) || !reserved && err != nil {
			t.Errorf("a provider named %s is answered with %v", name, err)
		}
	}
}
