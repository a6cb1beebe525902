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

// ForMember is the spec that members are given: without target and channel, with the version, which is not empty, and
// with the names under which members have the copies of the plan's Secrets.
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

// SecretName is the name of the copy of a Secret in a member: two plans that name one Secret have a copy each. The
// first dot ends the plan's name; a plan that has one in its own, and too long a name, get a digest.
func SecretName(plan, secret string) string {
	name := plan + "." + secret
	if len(name) <= maxName && !strings.Contains(plan, ".") {
		return name
	}
	sum := sha256.Sum224([]byte(plan + "/" + secret))
	return plan + "." + hex.EncodeToString(sum[:])
}
