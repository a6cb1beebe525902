// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rivals returns the fields that could not be applied because other field managers own them.
func Rivals(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var names []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			names = append(names, fmt.Sprintf("%s: %s", cause.Field, cause.Message))
		}
	}
	return names
}

// Replaced reports whether an update failed because no object with the given UID exists. Either the object is gone, or
// another object now has its name.
func Replaced(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsConflict(err) {
		return true
	}
	return errors.As(err, &status) && apierrors.IsInvalid(err) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes,
			func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// InvalidFields returns the fields that the API server rejects, without their values.
func InvalidFields(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return "it does not name a field"
	}
	var all []string
	for _, cause := range status.Status().Details.Causes {
		all = append(all, cause.Field+" ("+string(cause.Type)+")")
	}
	return strings.Join(all, ", ")
}
