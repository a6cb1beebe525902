// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package account

import "testing"

// A member made by kubeadm gives the group kubeadm:cluster-admins all rights, and so does a hub that trusts the issuer.
func TestReservedProviderNamesAreRefused(t *testing.T) {
	for _, name := range []string{"hub", "system", "local", "kubeadm", "eks", "", "a:b"} {
		if principal, err := Principal(name, "cluster-admins"); err == nil || !Reserved(name) {
			t.Errorf("a provider named %q makes the user %s", name, principal)
		}
	}
	for _, name := range []string{"okta", "kubeadm-users", "eks-corp"} {
		if _, err := Principal(name, "alice"); err != nil {
			t.Errorf("a provider named %q makes no user: %v", name, err)
		}
	}
}
