// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

const maxName = 253

// ForMember returns the spec that members receive. It has no target and no channel. Its version is never empty. It
// refers to the plan's Secrets by the names of their copies in members.
func ForMember(plan string, spec *v1.PlanSpec, version string) *v1.PlanSpec {
	s := spec.DeepCopy()
	s.PlanTarget, s.Channel, s.Version = v1.PlanTarget{}, "", version
	for i := range s.Secrets {
		secret := &s.Secrets[i]
		if secret.Path == "" {
			secret.Path = secret.Name
		}
		secret.Name = SecretName(plan, secret.Name)
	}
	for i := range s.ImagePullSecrets {
		s.ImagePullSecrets[i].Name = SecretName(plan, s.ImagePullSecrets[i].Name)
	}
	return s
}

// SecretName returns the name of the copy of a Secret in a member. If two plans use the same Secret, each plan has
// its own copy. The first dot in the name marks the end of the plan's name. If the plan's name itself contains a dot,
// or if the result would be too long, SecretName uses a digest instead.
func SecretName(plan, secret string) string {
	name := plan + "." + secret
	if len(name) <= maxName && !strings.Contains(plan, ".") {
		return name
	}
	sum := sha256.Sum224([]byte(plan + "/" + secret))
	return plan + "." + hex.EncodeToString(sum[:])
}
