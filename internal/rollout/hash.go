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

// Version returns a version in the form that image tags and labels use. Because neither may contain "+", each "+"
// becomes "-".
func Version(version string) string { return strings.ReplaceAll(version, "+", "-") }

// SecretDigest returns the digest that represents the content of a Secret in Hash.
func SecretDigest(secret *corev1.Secret) (string, error) {
	return digest(secret.Type, secret.Data)
}

// Hash returns the label value of nodes that have completed a plan. It is 56 characters long. It is computed from the
// work on a node, the version (before or after conversion with Version), and the digests of Secrets by name. Secrets
// with ignoreUpdates and Secrets that the plan does not mount are not included.
func Hash(work *v1.NodeWork, version string, secrets map[string]string) (string, error) {
	matter := map[string]string{}
	for _, s := range work.Secrets {
		if content, known := secrets[s.Name]; known && !s.IgnoreUpdates {
			matter[s.Name] = content
		}
	}
	return digest(work, Version(version), matter)
}

// Revision returns a digest of the hash and the node selector. A member starts again when either of them changes.
func Revision(hash string, pace *v1.PlanPace) (string, error) { return digest(hash, pace.NodeSelector) }

// digest returns a digest of the JSON of parts. The JSON is canonical, because Go writes fields in declaration order
// and sorts the keys of maps.
func digest(parts ...any) (string, error) {
	raw, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("compute hash: %w", err)
	}
	sum := sha256.Sum224(raw)
	return hex.EncodeToString(sum[:]), nil
}
