// Package monitoring has no code: it keeps the types of Prometheus' operator in go.mod, which its
// custom resource definitions are made from.
package monitoring

import _ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
