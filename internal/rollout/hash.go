// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Version returns a version in the form that image tags and labels use. Each "+" is replaced by "-", because neither
// tags nor labels may contain "+".
func Version(version string) string { return strings.ReplaceAll(version, "+", "-") }

// SecretDigest returns a digest of a Secret's content. Hash uses it in place of the content.
func SecretDigest(secret *corev1.Secret) (string, error) {
	return digest(secret.Type, secret.Data)
}

// Hash returns the value of the label on nodes that have completed a plan. The value is 56 characters long. It is
// computed from the work on a node, the version (before or after conversion with Version), and the digests of Secrets
// by name. It does not cover Secrets with ignoreUpdates or Secrets that the plan does not mount.
func Hash(work *v1.NodeWork, version string, secrets map[string]string) (string, error) {
	matter := map[string]string{}
	for _, s := range work.Secrets {
		if content, known := secrets[s.Name]; known && !s.IgnoreUpdates {
			matter[s.Name] = content
		}
	}
	return digest(work, Version(version), matter)
}

// Revision returns a digest of the hash and the node selector. A member starts the plan again when either of them
// changes.
func Revision(hash string, pace *v1.PlanPace) (string, error) { return digest(hash, pace.NodeSelector) }

// ApprovalRevision returns the digest that a user approves, or for which a user overrides checks. An approval must not
// count for any other work, members or pace, so the digest covers the revision and the whole spec, except for a pause,
// the approvals and the overrides. The UID ensures that an approval does not count for a copy of the plan, or for a
// plan that is created again.
func ApprovalRevision(uid types.UID, revision string, spec *v1.PlanSpec) (string, error) {
	approved := *spec
	approved.Paused, approved.Approvals, approved.Overrides = false, nil, nil
	return digest(uid, revision, approved)
}

// BaselineApprovalRevision returns the digest that a user approves for a Baseline. The content is the digest of
// everything that members receive, in place of the manifests. See ApprovalRevision.
func BaselineApprovalRevision(uid types.UID, content string, spec *v1.BaselineSpec) (string, error) {
	approved := *spec
	approved.Paused, approved.Approvals, approved.Manifests = false, nil, nil
	return digest(uid, content, approved)
}

// digest returns a digest of the JSON of parts. The JSON is canonical, because encoding/json writes fields in
// declaration order and sorts map keys.
func digest(parts ...any) (string, error) {
	raw, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("compute hash: %w", err)
	}
	sum := sha256.Sum224(raw)
	return hex.EncodeToString(sum[:]), nil
}

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
