package config

import "strings"

// Nearest is the name with the fewest single-letter changes from word, the first of them in the order of names; empty when
// there are no names. One that contains the word, or is contained in it, is preferred among equals far away.
func Nearest(word string, names []string) string {
	best, least := "", 0
	for _, name := range names {
		d := distance(word, name)
		if strings.Contains(name, word) || strings.Contains(word, name) {
			d /= 2
		}
		if best == "" || d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
