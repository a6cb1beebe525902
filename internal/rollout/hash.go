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
