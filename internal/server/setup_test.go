// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestCacheThatCannotBeFilledSaysWhatToDo(t *testing.T) {
	if err := notFilled(&v1.AuthProvider{}, fmt.Errorf("get informer: %w", &meta.NoKindMatchError{})); !strings.Contains(err.Error(), "*v1.AuthProvider") || !strings.Contains(err.Error(), "apply the CRDs") {
		t.Errorf("without the CRD of AuthProvider readiness says %q", err)
	}
	if err := notFilled(&v1.User{}, context.DeadlineExceeded); strings.Contains(err.Error(), "CRD") {
		t.Errorf("while a cache is filled readiness says %q", err)
	}
}
